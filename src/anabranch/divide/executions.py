"""Executions that are at one node of the tree of decisions, and their log density by site."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax.tree_util import tree_flatten, tree_leaves, tree_unflatten

from anabranch.divide.batch import Batch
from anabranch.divide.decision_node import DecisionNode
from anabranch.divide.evaluation import NamedValues
from anabranch.divide.graph import Node, with_batch_axis
from anabranch.divide.internals import PathTracer, as_input
from anabranch.divide.interpreted_run import InterpretedRun, RunRecord, kind_of
from anabranch.divide.path import Path
from anabranch.divide.recording import Recording, Site
from anabranch.divide.scores import Scorer

__all__ = ["Executions", "Scores"]


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
    run: InterpretedRun | None = None
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
        if self.run is not None:
            return self.run.recording
        assert self.node.recording is not None
        return self.node.recording

    @property
    def _record(self) -> RunRecord | None:
        """What a helper has sent of a run that it made."""
        return None if self.run is None or len(self.batch) != 1 else self.run.record

    @property
    def sites(self) -> Sequence[Site]:
        """The sites that they have met; of a run made elsewhere, those of another run of the same path."""
        if self._record is None or self.node.recording is None:
            return self.recording.sites
        return self.node.recording.sites

    def scores(self) -> Scores:
        """What each site, and all observations together, add to the log density of the members."""
        if self._scores is None:
            values, record = self.values(), self._record
            if record is not None:
                log_probs, log_likelihood = record.log_probs, record.log_likelihood
            else:
                log_probs, log_likelihood = self.recording.once(Scorer)(values, len(self.batch))
            columns = zip(self.sites, log_probs.T, strict=True)
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
        site = next(site for site in self.sites if site.name == name)
        if self._record is not None:
            kind, parameters = self._record.parameters[name]
            if kind == kind_of(site):
                return site, [parameter[None][at] for parameter in parameters]
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
