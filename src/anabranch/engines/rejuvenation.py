"""The moves of resample-move SMC (Gilks and Berzuini, 2001; paper, section 3: RM-SMC).

After particles were resampled at observation t, copies of a particle are alike. Each makes some steps of single-site
Metropolis-Hastings (`single_site.py`) that leave the distribution of executions up to there unchanged,

    γ_t(x_{1:t}) = Π_s f_s(x_s) Π_{j ≤ t} g_j(y_j),

so that the weights stay as they are, and Ẑ stays unbiased. A step executes the program from its beginning to the
observation. Local steps have fixed scales: scales learned from the particles would bias Ẑ.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from anabranch.divide import Constraints, Executions, Terms
from anabranch.engines.markov import accepted
from anabranch.engines.runner import Runner
from anabranch.engines.single_site import LocalMoves, log_acceptance, propose
from anabranch.engines.traces import Traces, valid

__all__ = ["Rejuvenation", "executed_until", "until"]


@dataclass(frozen=True)
class Rejuvenation:
    """So many steps of each particle; a share of them is local, and the others draw a site from its prior."""

    steps: int
    local_share: float = 0.5

    def moved(
        self, runner: Runner, arrivals: Sequence[Executions], observed: int, moving: np.ndarray, rng: Generator
    ) -> tuple[list[Executions], np.ndarray]:
        """The particles after their steps, at the same observation, and their log likelihood; some do not move."""
        now = until(runner, arrivals, observed, len(moving))
        for _ in range(self.steps):
            proposal = propose(runner, now, LocalMoves(self.local_share), rng)
            proposed = executed_until(runner, proposal.given, observed, len(moving), rng)
            new = until(runner, proposed, observed, len(moving))
            runner.evaluations += int(moving.sum())
            log_ratio = log_acceptance(runner, now, new, proposal, proposed)
            now = now.replaced(moving & accepted(log_ratio, rng), new)
        return executed_until(runner, now.given(), observed, len(moving), rng), now.log_likelihood


def executed_until(runner: Runner, given: Constraints, observed: int, n: int, rng: Generator) -> list[Executions]:
    """Executions with values of some sites, up to an observation; later sites are not bound to those values."""
    begun = runner.division.begin(n, int(rng.integers(2**62)), given)
    arrivals = runner.division.advance([begun], until=observed)
    for arrival in arrivals:
        if arrival.run is None and not arrival.node.truncated:
            for site in arrival.recording.sites[: _met(arrival, observed)]:
                arrival.batch.values(arrival.recording, site.outputs[0])
    return [replace(arrival, batch=replace(arrival.batch, constraints=Constraints())) for arrival in arrivals]


def until(runner: Runner, arrivals: Sequence[Executions], observed: int, n: int) -> Traces:
    """The sites before an observation, with their log densities, and the log likelihood up to it."""
    out = Traces.empty(runner.paths, n)
    for arrival in arrivals:
        if arrival.node.truncated:
            continue
        recording, members = arrival.recording, arrival.members
        if arrival.run is not None:  # the interpreter has run it to its end
            scores = arrival.scores()
            out.log_likelihood[members] = valid(scores.log_likelihood)
            for key, (values, log_probs) in scores.sites.items():
                out.put(key, members, values, log_probs)
        else:
            terms = recording.once(Terms)
            observations = recording.observations[:observed]
            total = sum((arrival.over_members(terms.of(each).value) for each in observations), np.zeros(len(members)))
            out.log_likelihood[members] = valid(total)
            for site in recording.sites[: _met(arrival, observed)]:
                values = arrival.batch.values(recording, site.outputs[0])
                out.put((site.name, site.shape), members, values, arrival.over_members(terms.of(site).value))
        for site in recording.sites[: _met(arrival, observed)]:
            runner.register(site)
    return out


def _met(arrival: Executions, observed: int) -> int:
    """The number of sites before an observation; all sites of an execution that has ended."""
    recording = arrival.recording
    ended = arrival.run is not None or len(recording.observations) < observed
    return len(recording.sites) if ended else recording.observations[observed - 1].preceding
