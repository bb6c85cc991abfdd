"""Ancestor sampling: in a conditional filter the reference may continue the past of any particle.

The beginning of a long execution, of which few particles differ at the end, can change so (Lindsten et al., 2014).
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.random import Generator

from anabranch.divide import Constraints, Executions, Site
from anabranch.engines.runner import Runner
from anabranch.engines.traces import Key, Traces, valid

__all__ = ["Past"]


class Past:
    """The particles of filters up to an observation.

    Particle i becomes the past of a reference x' with a probability in proportion to w_t^i γ(x_{1:t}^i, x'_{t+1:T}) /
    γ(x_{1:t}^i), which is zero where the program, with that past, does not have the remaining sites of x'.
    """

    def __init__(self, runner: Runner, groups: Sequence[Executions], observed: int, log_likelihood: np.ndarray) -> None:
        self.runner, self.log_likelihood = runner, log_likelihood
        self.traces = Traces.empty(runner.paths, len(log_likelihood))
        for arrival in groups:
            for site, value in _sites_before(arrival, observed):
                self.traces.put((site.name, site.shape), arrival.members, value)

    def choose(
        self, ancestors: np.ndarray, references: Constraints, log_weights: np.ndarray, rows: np.ndarray, rng: Generator
    ) -> None:
        """Choose the past of the reference, the first particle, of each of the filters in these rows."""
        n = log_weights.shape[1]
        first = np.repeat(np.arange(len(log_weights)) * n, n)
        values, present = dict(self.traces.values), dict(self.traces.present)
        rest: dict[Key, np.ndarray] = {}
        nowhere = np.zeros(len(first), bool)
        clash = nowhere.copy()
        for key, column in references.values.items():
            # A site of the reference's own past is not part of its future.
            rest[key] = references.present[key][first] & ~self.traces.present.get(key, nowhere)[first]
            clash |= rest[key] & self.traces.present.get(key, nowhere)
            values[key] = np.where(rest[key].reshape(-1, *[1] * len(key[1])), column[first], values.get(key, 0.0))
            present[key] = present.get(key, nowhere) | rest[key]
        whole = self.runner.execute(len(first), Constraints(values, present))
        log_future = valid(whole.log_likelihood) - self.log_likelihood
        fits = (whole.log_density > -np.inf) & ~clash  # no site may be in the past and in the future
        for key in sorted(whole.present.keys() | rest.keys()):
            there, wanted = whole.present.get(key, nowhere), rest.get(key, nowhere)
            fits &= ~(wanted & ~there)  # a site of the reference that is not met
            fits &= ~(there & ~present.get(key, nowhere))  # one that the reference does not have
            log_future += np.where(there & wanted, whole.log_probs.get(key, 0.0), 0.0)
        log_odds = np.where(fits, log_weights.ravel() + log_future, -np.inf).reshape(log_weights.shape)
        for row in np.flatnonzero(rows):
            if np.isfinite(log_odds[row]).any():
                ancestors[row * n] = row * n + int((log_odds[row] + rng.gumbel(size=n)).argmax())


def _sites_before(arrival: Executions, observed: int) -> Iterator[tuple[Site, np.ndarray]]:
    """The sites before an observation, or all sites of an execution that has ended, with their values."""
    if arrival.node.truncated:
        return
    recording = arrival.recording
    if arrival.run is not None:
        values = arrival.values()
        yield from ((site, values[site.name]) for site in recording.sites)
        return
    ended = len(recording.observations) < observed
    for site in recording.sites if ended else recording.sites[: recording.observations[observed - 1].preceding]:
        yield site, arrival.batch.values(recording, site.outputs[0])
