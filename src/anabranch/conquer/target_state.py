"""What visits change of a target, as plain data: for another process, or for a file.

A target has a path, whose compiled density stays in its process, and counters: of evaluations, and of the points that
decide how the next ones are computed (`Ways`). With its counters, a target of the same path in another process gives
the same numbers, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from anabranch.conquer.conjugate import Conjugates
from anabranch.conquer.elimination import Eliminated, Elimination, Sums, summed_out
from anabranch.conquer.integrated import Integrated
from anabranch.conquer.target import Counts, PathTarget, Target
from anabranch.divide import PriorDraws

__all__ = ["TargetState", "restored", "state_of_target"]


@dataclass(frozen=True)
class TargetState:
    """The counters of a target.

    Attributes:
        evaluations, seconds, best_likelihood: those of its account.
        has_gradient: whether the path can be differentiated.
        ways: those of the path's density, and of its sums over discrete variables.
        climbable: of the path's density, and of the sums or integrals.
        notes: of the same.
        points: of the path: those without a density, and all.
        padding: of the path: numbers computed for padding, which decide the size of the blocks that are compiled.
        split: prior draws, where they take splitting.
        sums: which discrete variables are summed out, and over which values; None: none are.
        is_integrable: whether coordinates can be integrated out.
        conjugates: which are; None: none are.
    """

    evaluations: int
    seconds: float
    best_likelihood: float
    has_gradient: bool
    ways: tuple[Counts, ...]
    climbable: tuple[bool | None, ...]
    notes: tuple[tuple[str, ...], ...]
    points: tuple[int, int]
    padding: tuple[tuple[int, int], ...] = ()
    split: PriorDraws | None = None
    sums: Sums | None = None
    is_integrable: bool | None = None
    conjugates: Conjugates | None = None

    @property
    def light(self) -> TargetState:
        """Without the prior draws, which may be many: enough to say what was done, and not to go on."""
        return replace(self, split=None)


def state_of_target(target: Target) -> TargetState:
    """The counters of a target as they are now."""
    whole, marginal = _parts(target)
    own = _own(whole, marginal)
    account, path = whole.account, whole.path
    return TargetState(
        evaluations=account.evaluations, seconds=account.seconds, best_likelihood=account.best_likelihood,
        has_gradient=whole.has_gradient,
        ways=tuple(each.ways.counts for each in own if not isinstance(each, Integrated)),
        climbable=tuple(each.climbable for each in own), notes=tuple(each.notes for each in own),
        points=(path.invalid, path.evaluated), padding=tuple(path.padding.items()), split=whole.split,
        sums=marginal.sums if isinstance(marginal, Eliminated) else None, is_integrable=whole.is_integrable,
        conjugates=marginal.conjugates if isinstance(marginal, Integrated) else None,
    )  # fmt: skip


def restored(target: Target, state: TargetState, elimination: Elimination | None) -> Target:
    """The target of the same path with these counters; the one that is given changes, or what it is made of does."""
    whole, marginal = _parts(target)
    if state.conjugates is not None:
        if not isinstance(marginal, Integrated) or not marginal.conjugates.is_same(state.conjugates):
            marginal = Integrated(whole, state.conjugates)
    elif state.sums is None:
        marginal = None
    elif not isinstance(marginal, Eliminated) or marginal.sums != state.sums:
        assert elimination is not None
        marginal = summed_out(whole, state.sums, elimination)
    account, path = whole.account, whole.path
    account.evaluations, account.seconds = state.evaluations, state.seconds
    account.best_likelihood = state.best_likelihood
    path.invalid, path.evaluated = state.points
    path.padding.clear()
    path.padding.update(state.padding)
    whole.split, whole.has_gradient, whole.is_integrable = state.split, state.has_gradient, state.is_integrable
    own = _own(whole, marginal)
    for each, climbable, notes in zip(own, state.climbable, state.notes, strict=True):
        each.climbable, each.notes = climbable, notes
    with_ways = [each for each in own if not isinstance(each, Integrated)]
    for each, counts in zip(with_ways, state.ways, strict=True):
        each.ways.counts = counts
    return own[-1]


def _parts(target: Target) -> tuple[PathTarget, Eliminated | Integrated | None]:
    """The density of the path, and that without the coordinates that are summed or integrated out, if any are."""
    marginal = target if isinstance(target, Eliminated | Integrated) else None
    whole = target if marginal is None else marginal.target
    assert isinstance(whole, PathTarget)
    return whole, marginal


def _own(whole: PathTarget, marginal: Eliminated | Integrated | None) -> list[PathTarget | Eliminated | Integrated]:
    return [whole] if marginal is None else [whole, marginal]
