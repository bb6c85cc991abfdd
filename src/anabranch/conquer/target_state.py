"""What visits change of a target, as plain data: for another process, or for a file.

A target has a path, whose compiled density stays in its process, and counters: of evaluations, and of the points that
decide how the next ones are computed (`Ways`). With its counters, a target of the same path in another process gives
the same numbers, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from anabranch.conquer.elimination import Eliminated, Elimination, Sums, summed_out
from anabranch.conquer.target import PathTarget, Target
from anabranch.divide import PriorDraws

__all__ = ["TargetState", "restored", "state_of_target"]


@dataclass(frozen=True)
class TargetState:
    """The counters of a target.

    Attributes:
        evaluations, seconds, best_likelihood: those of its account.
        has_gradient: whether the path can be differentiated.
        ways: those of the path's density, and of its sums over discrete variables.
        climbable: of the path's density, and of the sums.
        notes: of the same.
        points: of the path: those without a density, and all.
        padding: of the path: numbers computed for padding, which decide the size of the blocks that are compiled.
        split: prior draws, where they take splitting.
        sums: which discrete variables are summed out, and over which values; None: none are.
    """

    evaluations: int
    seconds: float
    best_likelihood: float
    has_gradient: bool
    ways: tuple[tuple[bool, int, int], ...]
    climbable: tuple[bool | None, ...]
    notes: tuple[tuple[str, ...], ...]
    points: tuple[int, int]
    padding: tuple[tuple[int, int], ...] = ()
    split: PriorDraws | None = None
    sums: Sums | None = None

    @property
    def light(self) -> TargetState:
        """Without the prior draws, which may be many: enough to say what was done, and not to go on."""
        return replace(self, split=None)


def state_of_target(target: Target) -> TargetState:
    """The counters of a target as they are now."""
    whole, sums = _parts(target)
    own: list[PathTarget | Eliminated] = [whole] if sums is None else [whole, sums]
    account, path = whole.account, whole.path
    return TargetState(
        evaluations=account.evaluations, seconds=account.seconds, best_likelihood=account.best_likelihood,
        has_gradient=whole.has_gradient, ways=tuple(each.ways.counts for each in own),
        climbable=tuple(each.climbable for each in own), notes=tuple(each.notes for each in own),
        points=(path.invalid, path.evaluated), padding=tuple(path.padding.items()), split=whole.split,
        sums=None if sums is None else sums.sums,
    )  # fmt: skip


def restored(target: Target, state: TargetState, elimination: Elimination | None) -> Target:
    """The target of the same path with these counters; the one that is given changes, or what it is made of does."""
    whole, sums = _parts(target)
    if state.sums is None:
        sums = None
    elif sums is None or sums.sums != state.sums:
        assert elimination is not None
        sums = summed_out(whole, state.sums, elimination)
    account, path = whole.account, whole.path
    account.evaluations, account.seconds = state.evaluations, state.seconds
    account.best_likelihood = state.best_likelihood
    path.invalid, path.evaluated = state.points
    path.padding.clear()
    path.padding.update(state.padding)
    whole.split, whole.has_gradient = state.split, state.has_gradient
    own: list[PathTarget | Eliminated] = [whole] if sums is None else [whole, sums]
    for each, counts, climbable, notes in zip(own, state.ways, state.climbable, state.notes, strict=True):
        each.ways.counts, each.climbable, each.notes = counts, climbable, notes
    return own[-1]


def _parts(target: Target) -> tuple[PathTarget, Eliminated | None]:
    """The density of the path, and the sums over its discrete variables, if there are any."""
    sums = target if isinstance(target, Eliminated) else None
    whole = target if sums is None else sums.target
    assert isinstance(whole, PathTarget)
    return whole, sums
