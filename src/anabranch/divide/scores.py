"""The parts of the log density of executions: one for each site, and one for all observations.

Samplers of whole executions need log f_s of every site s, and Σ_o log g_o. NumPy computes them at first; they are
compiled once more was computed than it takes to compile. Counts alone decide, and no clock: a seed has one answer.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import jax
import numpy as np

from anabranch.divide.density import lanes_of_values
from anabranch.divide.dispatch import Jitted, in_blocks
from anabranch.divide.recording import Recording
from anabranch.divide.terms import Evaluator, Terms
from anabranch.limits import time_limit

__all__ = ["AT_ONCE", "Scorer"]

_STEPS, _NUMBERS = 40_000, 200_000_000
"""Steps applied, or numbers computed, on the host before the function is compiled: about as long as that takes."""
AT_ONCE = 1_000
"""Executions that are evaluated on the host at a time: every value on the way is kept until the end."""
_FEW, _MANY = 16, 256
"""Executions per call of the compiled function: one of two sizes, to which a batch is padded."""


class Scorer:
    """The parts of the log density of one recording. Made by `recording.once(Scorer)`."""

    def __init__(self, recording: Recording) -> None:
        self.recording, self.graph = recording, recording.trace.graph
        terms = recording.once(Terms)
        self.prior, self.likelihood = terms.prior, terms.likelihood
        self.steps = self.numbers = 0
        self.seconds = 0.0  # that one execution takes on the host, where the time is limited

    def __call__(self, values: Mapping[str, np.ndarray], n: int) -> tuple[np.ndarray, np.ndarray]:
        """Given the values of all sites over n executions: log f_s (n, sites), and Σ_o log g_o (n,)."""
        self.steps, self.numbers = self.steps + len(self._evaluator.steps), self.numbers + n * self._size
        if self.recording.free and (self.steps > _STEPS or self.numbers > _NUMBERS):
            self._compiled.seconds = self._compiled.seconds or self.seconds
            rows = [np.asarray(values[site.name], np.float64).reshape(n, -1) for site in self.recording.free]
            size = _FEW if n <= _FEW else _MANY
            log_probs, log_likelihood = in_blocks(self._compiled, size, np.concatenate(rows, axis=1))
            return log_probs, log_likelihood
        parts = [slice(start, min(start + AT_ONCE, n)) for start in range(0, max(n, 1), AT_ONCE)]
        both = [self._on_host({k: v[part] for k, v in values.items()}, part.stop - part.start) for part in parts]
        log_probs, log_likelihood = (np.concatenate(column) for column in zip(*both, strict=True))
        return log_probs, log_likelihood

    @cached_property
    def _evaluator(self) -> Evaluator:
        inputs = [site.outputs[0] for site in self.recording.sites]
        return Evaluator(self.graph, [*self.prior, *self.likelihood], inputs)

    @cached_property
    def _size(self) -> int:
        """Numbers that the steps compute for one execution."""
        return sum(self.graph.types[node].size for step in self._evaluator.steps for node in step.outputs)

    def _on_host(self, values: Mapping[str, np.ndarray], n: int) -> tuple[np.ndarray, np.ndarray]:
        env = {site.outputs[0]: np.asarray(values[site.name]) for site in self.recording.sites}
        limits = time_limit()
        began = limits.elapsed if limits is not None else 0.0
        computed = self._evaluator.by_numpy(env, n)
        self.seconds = (limits.elapsed - began) / max(n, 1) if limits is not None else 0.0
        return computed.stacked(self.prior), computed.total(self.likelihood)

    @cached_property
    def _compiled(self) -> Jitted:
        def at(row: Any) -> tuple[Any, Any]:
            computed = self._evaluator.by_jax(lanes_of_values(self.recording, row))
            return computed.stacked(self.prior), computed.total(self.likelihood)

        return Jitted(jax.vmap(at))
