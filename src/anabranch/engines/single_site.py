"""Metropolis-Hastings on traces, one site at a time (paper, sections 3.2 and 7: LMH and RMH).

Lightweight MH (Wingate, Stuhlmueller and Goodman, 2011) chooses one of the |x| sites of an execution, draws its value
anew, and executes the program with all other values, as far as they are met and fit; sites that appear are drawn from
the prior (F, fresh), sites that vanish, or that cannot keep their value, are dropped (S, stale). With

    α = γ(x')/γ(x) · |x|/|x'| · Π_{s ∈ S} f_s(x_s) / Π_{s ∈ F} f_s(x'_s) · q_i(x_i | x'_i)/q_i(x'_i | x_i)

the move leaves the posterior unchanged. A site in both executions that had to be drawn anew has to be so on the way
back, too: if its new value would have been kept there, the move cannot be undone, and is refused.

Random-walk MH chooses between that and a local move of the value: normal, in the site's unconstrained coordinates, for
reals, and a step for whole numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from anabranch.divide.batch import Constraints
from anabranch.divide.executions import Executions
from anabranch.divide.site_transforms import can_have, log_jacobian
from anabranch.divide.site_transforms import moved as moved_by
from anabranch.engines.markov import accepted
from anabranch.engines.runner import Runner
from anabranch.engines.traces import Key, Traces

__all__ = ["Scales", "local_moves", "log_acceptance", "propose", "single_site_step"]

_WIDEST, _NARROWEST = 0.5, -2.5
"""Powers of ten between which the size of a local step is drawn, in units of the prior's standard deviation."""


class Scales:
    """How large local moves of each site are: the spread of its coordinates over the executions of the warm-up."""

    def __init__(self) -> None:
        self.known: dict[Key, np.ndarray] = {}

    def learn(self, traces: Traces) -> None:
        """Learn of sites not met before, from executions that have them."""
        if all(key in self.known for key in traces.values):
            return
        for path, rows in traces.by_path():
            if all((site.name, site.shape) in self.known for site in path.sites if not site.discrete):
                continue
            points = path.coordinates(traces.named(path, rows))
            for site in path.sites:
                if not site.discrete and (site.name, site.shape) not in self.known and len(rows) > 1:
                    spread = np.nanstd(np.where(np.isfinite(points), points, np.nan)[:, site.columns], axis=0)
                    self.known[site.name, site.shape] = np.where(spread > 0, spread, 1.0)

    def of(self, key: Key, size: int) -> np.ndarray:
        """The spread of each of the coordinates of a site; one where nothing is known."""
        known = self.known.get(key)
        return known if known is not None and len(known) == size else np.ones(size)


# One step -------------------------------------------------------------------------------------------------------------


@dataclass
class SiteChange:
    """The values to execute the program with, and what was changed.

    `chosen` is the site of each execution, a number in `keys`; `from_prior` says for which it is drawn anew, `steps`
    how it moves in the others if it is real.
    """

    keys: list[Key]
    chosen: np.ndarray
    from_prior: np.ndarray
    values: dict[Key, np.ndarray]
    present: dict[Key, np.ndarray]
    steps: dict[Key, np.ndarray] = field(default_factory=dict)

    @property
    def given(self) -> Constraints:
        """To execute the program with it."""
        return Constraints(self.values, self.present, self.steps, redraw_outside=True)


def single_site_step(
    runner: Runner,
    state: Traces,
    scales: Scales,
    local_share: float,
    rng: np.random.Generator,
    left_out: Mapping[Key, np.ndarray] | None = None,
) -> Traces:
    """One step of each chain: the executions after it. Sites that are left out, by row, are not chosen."""
    proposal = propose(state, runner, scales, local_share, rng, left_out)
    arrivals = runner.send(len(state), proposal.given)
    new = runner.traces(arrivals, len(state))
    return state.replaced(accepted(log_acceptance(runner, state, new, proposal, arrivals), rng), new)


def log_acceptance(
    runner: Runner, state: Traces, new: Traces, proposal: SiteChange, arrivals: Sequence[Executions]
) -> np.ndarray:
    """log α of each move; minus infinity for those that cannot be."""
    log_ratio, refused = _log_ratio(state, new, proposal)
    log_ratio += _log_jacobians(state, new, proposal, arrivals)
    refused |= _cannot_be_undone(runner, state, new, proposal, ~refused)
    return np.where(refused, -np.inf, log_ratio)


def propose(
    state: Traces,
    runner: Runner,
    scales: Scales,
    local_share: float,
    rng: np.random.Generator,
    left_out: Mapping[Key, np.ndarray] | None = None,
) -> SiteChange:
    """A change of one site of each execution, any of them, but for those left out, with the same probability."""
    n, keys, left_out = len(state), sorted(state.present), left_out or {}
    open_to = [state.present[key] & ~left_out[key] if key in left_out else state.present[key] for key in keys]
    possible = np.array(open_to).reshape(len(keys), n)
    rank = (rng.random(n) * possible.sum(axis=0)).astype(int)
    chosen = (possible.cumsum(axis=0) > rank).argmax(axis=0)
    from_prior = rng.random(n) >= local_share
    proposal = SiteChange(keys, chosen, from_prior, dict(state.values), dict(state.present))
    for number in np.unique(chosen):
        key, mine = keys[number], chosen == number
        drawn = mine & from_prior
        proposal.present[key] = state.present[key] & ~drawn
        local = np.flatnonzero(mine & ~from_prior)
        if len(local):
            _move(proposal, key, local, runner, scales, rng)
    return proposal


def _move(
    proposal: SiteChange, key: Key, rows: np.ndarray, runner: Runner, scales: Scales, rng: np.random.Generator
) -> None:
    """A local move of one site in some rows."""
    site = runner.site(key)
    n = len(proposal.chosen)
    if site.discrete:
        values = proposal.values[key] = proposal.values[key].copy()
        flat = values.reshape(n, -1)
        if flat.shape[1]:
            entry = rng.integers(flat.shape[1], size=len(rows))
            flat[rows, entry] += _whole_steps(len(rows), rng)
        return
    spread = scales.of(key, int(np.prod(site.unconstrained_shape)))
    steps = np.zeros((n, *site.unconstrained_shape))
    steps[rows] = local_moves(len(rows), spread, rng).reshape(-1, *site.unconstrained_shape)
    proposal.steps[key] = steps


def local_moves(n: int, spread: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """n steps of a real site, of any size up to a few times its spread: of all its coordinates or of one, by turns."""
    size = len(spread)
    width = 10.0 ** rng.uniform(_NARROWEST, _WIDEST, (n, 1)) * spread
    one = np.arange(size) == rng.integers(max(size, 1), size=(n, 1))
    return width * rng.standard_normal((n, size)) * (one | (rng.random((n, 1)) < 0.5))


def _whole_steps(n: int, rng: np.random.Generator) -> np.ndarray:
    """One or a few up or down mostly, of many at times; up as often as down."""
    return rng.choice([-1, 1], n) * rng.geometric(10.0 ** rng.uniform(-1.5, 0, n))


def _kept(new: Traces, proposal: SiteChange, key: Key) -> np.ndarray:
    """The rows in which a site has the value that it was given."""
    n = len(new)
    if key not in new.present or key not in proposal.present:
        return np.zeros(n, bool)
    kept = new.present[key] & proposal.present[key]
    if key in proposal.steps:
        moved = proposal.steps[key].reshape(n, -1).any(axis=1)
        # The site that moved has another value than it was given; `_log_jacobians` sees whether it is the right one.
        return kept & np.where(moved, True, _same(new.values[key], proposal.values[key]))
    return kept & _same(new.values[key], proposal.values[key])


def _same(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return (one == other).reshape(len(one), -1).all(axis=1)


def _log_ratio(state: Traces, new: Traces, proposal: SiteChange) -> tuple[np.ndarray, np.ndarray]:
    """The log of α but for the Jacobian of a local move; and which moves did not come about."""
    with np.errstate(invalid="ignore"):
        ratio = new.log_density - state.log_density + np.log(state.sites) - np.log(np.maximum(new.sites, 1))
    refused = new.log_density == -np.inf
    for key in sorted(state.present.keys() | new.present.keys()):
        kept = _kept(new, proposal, key)
        if key in state.present:
            ratio += np.where(state.present[key] & ~kept, state.log_probs[key], 0.0)
        if key in new.present:
            ratio -= np.where(new.present[key] & ~kept, new.log_probs[key], 0.0)
        if key in proposal.keys:
            moved = (proposal.chosen == proposal.keys.index(key)) & ~proposal.from_prior
            refused |= moved & ~kept
    return ratio, refused


def _log_jacobians(state: Traces, new: Traces, proposal: SiteChange, arrivals: Sequence[Executions]) -> np.ndarray:
    """Of a local move of a real site, normal in its coordinates u: log |dx'/du'| − log |dx/du|.

    Minus infinity where the step led so far that the value was rounded to outside of the support, and drawn instead.
    """
    out = np.zeros(len(state))
    for executions in arrivals:
        members = executions.members
        for key, steps in proposal.steps.items():
            moved = steps[members].reshape(len(members), -1).any(axis=1)
            if key not in new.present or not (moved & new.present[key][members]).any():
                continue
            at = np.flatnonzero(moved & new.present[key][members])
            site, parameters = executions.parameters(key[0])
            theirs = [parameter[at] for parameter in parameters]
            rows = members[at]
            before, after = state.values[key][rows], new.values[key][rows]
            arrived = np.isclose(after, moved_by(site, theirs, before, steps[rows]), rtol=1e-9, atol=0)
            ratio = log_jacobian(site, theirs, after) - log_jacobian(site, theirs, before)
            out[rows] = np.where(arrived.reshape(len(rows), -1).all(axis=1), ratio, -np.inf)
    return out


def _cannot_be_undone(
    runner: Runner, state: Traces, new: Traces, proposal: SiteChange, relevant: np.ndarray
) -> np.ndarray:
    """The moves in which a site was drawn anew whose new value would have been kept on the way back."""
    redrawn: dict[Key, np.ndarray] = {}
    for number, key in enumerate(proposal.keys):
        if key in new.present:
            both = state.present[key] & new.present[key] & ~_kept(new, proposal, key)
            redrawn[key] = both & (proposal.chosen != number) & relevant
    redrawn = {key: rows for key, rows in redrawn.items() if rows.any()}
    out = np.zeros(len(state), bool)
    if not redrawn:
        return out
    rows = np.flatnonzero(np.logical_or.reduce(list(redrawn.values())))
    for executions in runner.send(len(rows), state.take(rows).given()):
        members = rows[executions.members]
        for key, asked in redrawn.items():
            at = np.flatnonzero(asked[members])
            if len(at):
                site, parameters = executions.parameters(key[0])
                values = new.values[key][members[at]]
                values = values.astype(np.int64) if site.discrete else values
                out[members[at]] |= can_have(site, [parameter[at] for parameter in parameters], values)
    return out
