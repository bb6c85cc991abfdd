"""Metropolis-Hastings on traces, one site at a time (paper, sections 3.1 and 7: LMH and RMH).

Lightweight MH (Wingate, Stuhlmueller and Goodman, 2011) chooses one of the |x| sites of an execution, draws its value
anew, and executes the program with all other values that it meets and that are possible there. Sites that appear are
drawn from the prior (F, fresh); sites that vanish, or that cannot keep their value, are dropped (S, stale). With

    α = γ(x')/γ(x) · |x|/|x'| · Π_{s ∈ S} f_s(x_s) / Π_{s ∈ F} f_s(x'_s) · q_i(x_i | x'_i)/q_i(x'_i | x_i)

the move leaves the posterior unchanged. A site in both executions that was drawn anew must be drawn anew on the way
back, too: if its new value would have been kept there, the move cannot be undone, and is refused.

Random-walk MH chooses between that and a local move: normal in the unconstrained coordinates of a continuous site, a
few steps up or down for whole numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator

from anabranch.divide import Constraints, Executions, site_transforms
from anabranch.engines.markov import accepted
from anabranch.engines.runner import Runner
from anabranch.engines.traces import Key, Traces

__all__ = ["LocalMoves", "SiteProposal", "log_acceptance", "propose", "single_site_step"]

_MIN_POWER, _MAX_POWER = -2.5, 0.5
"""Powers of ten between which the size of a local step is drawn, in units of the site's standard deviation."""
LeftOut = Mapping[Key, np.ndarray] | None
"""Sites that are not chosen, by row."""


@dataclass
class LocalMoves:
    """Local moves of a site: their share of all moves, and the standard deviation of each site in the warm-up."""

    share: float
    known: dict[Key, np.ndarray] = field(default_factory=dict)

    def learn(self, traces: Traces) -> None:
        """Set the scales of sites that have none yet, from executions that have them."""
        if all(key in self.known for key in traces.values):
            return
        for path, rows in traces.by_path():
            if all((site.name, site.shape) in self.known for site in path.sites if not site.discrete):
                continue
            points = path.coordinates(traces.named(path, rows))
            for site in path.sites:
                if not site.discrete and (site.name, site.shape) not in self.known and len(rows) > 1:
                    scale = np.nanstd(np.where(np.isfinite(points), points, np.nan)[:, site.columns], axis=0)
                    self.known[site.name, site.shape] = np.where(scale > 0, scale, 1.0)

    def steps(self, n: int, key: Key, size: int, rng: Generator) -> np.ndarray:
        """n steps of a continuous site with `size` coordinates, of all or of one, up to a few times its scale."""
        known = self.known.get(key)
        scale = known if known is not None and len(known) == size else np.ones(size)
        width = 10.0 ** rng.uniform(_MIN_POWER, _MAX_POWER, (n, 1)) * scale
        one = np.arange(size) == rng.integers(max(size, 1), size=(n, 1))
        return width * rng.standard_normal((n, size)) * (one | (rng.random((n, 1)) < 0.5))


@dataclass
class SiteProposal:
    """The values to execute the program with, and the site that changes in each execution.

    `chosen` is that site, a number in `keys`; `from_prior` says whether it is drawn from its prior; otherwise the steps
    of the constraints are the changes of its coordinates, if it is continuous.
    """

    keys: list[Key]
    chosen: np.ndarray
    from_prior: np.ndarray
    given: Constraints


def single_site_step(
    runner: Runner, state: Traces, local: LocalMoves, rng: Generator, left_out: LeftOut = None
) -> Traces:
    """The executions after one step of each chain."""
    proposal = propose(runner, state, local, rng, left_out)
    arrivals = runner.send(len(state), proposal.given)
    new = runner.traces(arrivals, len(state))
    return state.replaced(accepted(log_acceptance(runner, state, new, proposal, arrivals), rng), new)


def log_acceptance(
    runner: Runner, state: Traces, new: Traces, proposal: SiteProposal, arrivals: Sequence[Executions]
) -> np.ndarray:
    """log α of each move; minus infinity for those that are impossible."""
    log_ratio, refused = _log_ratio(state, new, proposal)
    log_ratio += _log_jacobians(state, new, proposal, arrivals)
    refused |= _cannot_be_undone(runner, state, new, proposal, ~refused)
    return np.where(refused, -np.inf, log_ratio)


def propose(runner: Runner, state: Traces, local: LocalMoves, rng: Generator, left_out: LeftOut = None) -> SiteProposal:
    """Change one site of each execution, each with the same probability."""
    n, keys, left_out = len(state), sorted(state.present), left_out or {}
    open_to = [state.present[key] & ~left_out[key] if key in left_out else state.present[key] for key in keys]
    possible = np.array(open_to).reshape(len(keys), n)
    rank = (rng.random(n) * possible.sum(axis=0)).astype(int)
    chosen = (possible.cumsum(axis=0) > rank).argmax(axis=0)
    from_prior = rng.random(n) >= local.share
    values, present, steps = dict(state.values), dict(state.present), {}
    for number in np.unique(chosen):
        key, mine = keys[number], chosen == number
        present[key] = state.present[key] & ~(mine & from_prior)
        rows, site = np.flatnonzero(mine & ~from_prior), runner.site(key)
        if len(rows) and site.discrete:
            values[key] = values[key].copy()
            flat = values[key].reshape(n, -1)
            if flat.shape[1]:
                entry = rng.integers(flat.shape[1], size=len(rows))
                # Up or down, mostly by one or a few, sometimes by many.
                sign = rng.choice([-1, 1], len(rows))
                flat[rows, entry] += sign * rng.geometric(10.0 ** rng.uniform(-1.5, 0, len(rows)))
        elif len(rows):
            shape = site.unconstrained_shape
            steps[key] = np.zeros((n, *shape))
            steps[key][rows] = local.steps(len(rows), key, int(np.prod(shape)), rng).reshape(-1, *shape)
    return SiteProposal(keys, chosen, from_prior, Constraints(values, present, steps, redraw_outside=True))


def _kept(new: Traces, proposal: SiteProposal, key: Key) -> np.ndarray:
    """The rows in which a site has the value that it was given."""
    n, given = len(new), proposal.given
    if key not in new.present or key not in given.present:
        return np.zeros(n, bool)
    same = (new.values[key] == given.values[key]).reshape(n, -1).all(axis=1)
    if key in given.steps:
        # The site that moved has another value than it was given; `_log_jacobians` checks that value.
        same |= given.steps[key].reshape(n, -1).any(axis=1)
    return new.present[key] & given.present[key] & same


def _log_ratio(state: Traces, new: Traces, proposal: SiteProposal) -> tuple[np.ndarray, np.ndarray]:
    """log α without the Jacobian of a local move, and which moves are impossible."""
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


def _log_jacobians(state: Traces, new: Traces, proposal: SiteProposal, arrivals: Sequence[Executions]) -> np.ndarray:
    """log |dx'/du'| − log |dx/du| of a local move of a continuous site, which is normal in its coordinates u.

    Minus infinity where the moved value was rounded out of the support, so that another was drawn instead.
    """
    out = np.zeros(len(state))
    for executions in arrivals:
        members = executions.members
        for key, steps in proposal.given.steps.items():
            moved = steps[members].reshape(len(members), -1).any(axis=1)
            if key not in new.present or not (moved & new.present[key][members]).any():
                continue
            at = np.flatnonzero(moved & new.present[key][members])
            site, theirs = executions.parameters(key[0], at)
            rows = members[at]
            before, after = state.values[key][rows], new.values[key][rows]
            arrived = np.isclose(after, site_transforms.moved(site, theirs, before, steps[rows]), rtol=1e-9, atol=0)
            log_before, log_after = (site_transforms.log_jacobian(site, theirs, x) for x in (before, after))
            out[rows] = np.where(arrived.reshape(len(rows), -1).all(axis=1), log_after - log_before, -np.inf)
    return out


def _cannot_be_undone(
    runner: Runner, state: Traces, new: Traces, proposal: SiteProposal, relevant: np.ndarray
) -> np.ndarray:
    """The moves in which a site was drawn anew although its new value would be kept on the way back."""
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
                site, parameters = executions.parameters(key[0], at)
                values = new.values[key][members[at]]
                values = values.astype(np.int64) if site.discrete else values
                out[members[at]] |= site_transforms.can_have(site, parameters, values)
    return out
