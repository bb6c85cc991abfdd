"""Executions that are at one node of the tree of decisions, and their log density by site.

Samplers of whole executions need log f_s of every site s, and Σ_o log g_o. NumPy computes them at first; they are
compiled once more was computed than it takes to compile. Counts alone decide, and no clock: a seed has one answer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.tree_util import tree_flatten, tree_leaves, tree_unflatten

from anabranch.divide.batch import Batch
from anabranch.divide.decision_node import DecisionNode
from anabranch.divide.density import lanes_of_values
from anabranch.divide.dispatch import Jitted, in_blocks
from anabranch.divide.evaluation import NamedValues
from anabranch.divide.graph import Node, with_batch_axis
from anabranch.divide.internals import PathTracer, as_input
from anabranch.divide.path import Path
from anabranch.divide.recording import Recording, Site
from anabranch.divide.terms import Evaluator, Terms
from anabranch.limits import time_limit

__all__ = ["AT_ONCE", "Executions", "Scorer", "Scores"]

_STEPS, _NUMBERS = 40_000, 200_000_000
"""Steps applied, or numbers computed, on the host before the function is compiled: about as long as that takes."""
AT_ONCE = 1_000
"""Executions that are evaluated on the host at a time: every value on the way is kept until the end."""
_FEW, _MANY = 16, 256
"""Executions per call of the compiled function: one of two sizes, to which a batch is padded."""


@dataclass(frozen=True)
class Scores:
    """The log likelihood of executions (n,), and of each site, by name and shape, its values and log densities."""

    log_likelihood: np.ndarray
    sites: dict[tuple[str, tuple[int, ...]], tuple[np.ndarray, np.ndarray]]


@dataclass(eq=False, repr=False)
class Executions:
    """Executions that are at one node of the tree of decisions.

    They have taken the same path if they came to its end; `path` is None if they had more sites than the bound allows,
    or stopped on the way. `members` are their numbers among all that were asked for; `values()` are their sites.
    """

    node: DecisionNode
    batch: Batch
    run: Recording | None = None
    """The run of the interpreter, if that executed it: it executes one at a time."""
    _scores: Scores | None = field(default=None, init=False)

    @property
    def path(self) -> Path | None:
        """The path that they took."""
        return self.node.path

    @property
    def members(self) -> np.ndarray:
        """Their numbers."""
        return self.batch.members

    def values(self, first: int | None = None) -> dict[str, np.ndarray]:
        """Every site by name, over the members, or over so many of them."""
        if self.run is not None:
            return {name: value[None] for name, value in self.run.values.items()}
        batch = self.batch
        if first is not None and first < len(batch):
            batch = batch.take(np.arange(first), batch.key)
        return batch.site_values(self.recording)

    @property
    def recording(self) -> Recording:
        """The recording that they have followed so far."""
        recording = self.run or self.node.recording
        assert recording is not None
        return recording

    def scores(self) -> Scores:
        """What each site, and all observations together, add to the log density of the members."""
        if self._scores is None:
            values = self.values()
            log_probs, log_likelihood = self.recording.once(Scorer)(values, len(self.batch))
            columns = zip(self.recording.sites, log_probs.T, strict=True)
            sites = {(site.name, site.shape): (values[site.name], column) for site, column in columns}
            self._scores = Scores(log_likelihood, sites)
        return self._scores

    def over_members(self, term: Any) -> np.ndarray:
        """The value of a term of the recording, for each member."""
        term = as_input(term)
        values = self.batch.values(self.recording, term) if isinstance(term, Node) else with_batch_axis(term)
        return np.broadcast_to(values, (len(self.batch), *values.shape[1:]))

    def parameters(self, name: str, at: np.ndarray | slice = slice(None)) -> tuple[Site, list[np.ndarray]]:
        """A site, and the parameters of its distribution, for each member, or for those at some places."""
        site = next(site for site in self.recording.sites if site.name == name)
        inputs = site.inputs if self.run is None else tree_leaves(site.distribution)
        return site, [self.over_members(x)[at] for x in inputs]

    def outcome(self, traced: Callable[[Recording], Any] | None = None) -> NamedValues:
        """Sites, deterministics and the program's return value, or what `traced` gives for it, of the members.

        It is what `Path.outcomes` gives for points, and `index` has the numbers of the members.
        """
        recording = self.recording
        wanted = (recording.deterministics, recording.result) if traced is None else ({}, traced(recording))
        leaves, tree = tree_flatten(wanted, is_leaf=lambda x: isinstance(x, PathTracer))
        if self.run is not None:
            known = [leaf.known if isinstance(leaf, PathTracer) else leaf for leaf in leaves]
            varies = [isinstance(leaf, np.ndarray) for leaf in known]
            filled = [leaf[None] if varying else leaf for leaf, varying in zip(known, varies, strict=True)]
        else:
            inputs = list(map(as_input, leaves))
            varies = [isinstance(x, Node) for x in inputs]
            filled = [self.over_members(x) if varying else x for x, varying in zip(inputs, varies, strict=True)]
        deterministics, result = tree_unflatten(tree, filled)
        return NamedValues(self.members, self.values(), deterministics, result, tree_unflatten(tree, varies))

    def __repr__(self) -> str:
        return f"Executions({self.path!r}, members={len(self.members)})"


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
