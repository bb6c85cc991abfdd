"""Executions that are at one node of the tree of decisions."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax.tree_util import tree_leaves

from anabranch.divide.batch import Batch
from anabranch.divide.decision_node import DecisionNode
from anabranch.divide.graph import Node, with_batch_axis
from anabranch.divide.internals import as_input
from anabranch.divide.path import Path
from anabranch.divide.recording import Recording, Site
from anabranch.divide.trace_density import Scorer

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

    def values(self) -> dict[str, np.ndarray]:
        """Every site by name, over the members."""
        if self.run is not None:
            return {name: value[None] for name, value in self.run.values.items()}
        return self.batch.site_values(self.recording)

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

    def parameters(self, name: str) -> tuple[Site, list[np.ndarray]]:
        """A site, and the parameters of its distribution, for each member."""
        site = next(site for site in self.recording.sites if site.name == name)
        inputs = site.inputs if self.run is None else tree_leaves(site.distribution)
        return site, [self.over_members(x) for x in inputs]

    def __repr__(self) -> str:
        return f"Executions({self.path!r}, members={len(self.members)})"
