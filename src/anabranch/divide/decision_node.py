"""A place in the tree of decisions, and the prior probability of coming there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anabranch.divide.batch import stable_hash
from anabranch.divide.graph import Node
from anabranch.divide.recording import Recording
from anabranch.divide.trace_density import Scorer

__all__ = ["DecisionNode", "Question"]

Question = tuple[int | None, int | None]
"""The number of the site whose value is asked for, or the node of the graph that is."""


@dataclass(eq=False)
class DecisionNode:
    """A place in the tree.

    It is unexplored until it has a `question`, an `end` (the recording of a whole run), is known to lead beyond the
    bound on sites (`remainder`), or leads to a part of the program that only the interpreter can run (`interpreted`,
    whose edges are the paths met rather than answers). `observed` observations come before the question.
    """

    parent: DecisionNode | None = None
    answer_key: Any = None
    answer: np.ndarray | None = None
    key: int = 0
    question: Question | None = None
    recording: Recording | None = None
    observed: int = 0
    end: Recording | None = None
    remainder: bool = False
    interpreted: bool = False
    visits: int = 0
    undone: int = 0  # visits that a limit ended before the interpreter had run them
    children: dict[Any, DecisionNode] = field(default_factory=dict)
    # For a question about the value of a site: the prior probability of each answer, as the log of a sum and a count.
    shares: dict[Any, tuple[float, int]] = field(default_factory=dict)
    parameters: list[dict[Node, np.ndarray]] = field(default_factory=list)
    scorer: Scorer | None = None
    _unmet: tuple[int, float] | None = None

    @property
    def unexplored(self) -> bool:
        return self.question is None and self.end is None and not self.remainder and not self.interpreted

    def child(self, answer_key: Any, answer: np.ndarray | None) -> DecisionNode:
        if answer_key not in self.children:
            self.children[answer_key] = DecisionNode(self, answer_key, answer, stable_hash(self.key, answer_key))
        return self.children[answer_key]

    def way(self) -> list[DecisionNode]:
        """The forks from below the root to here."""
        way: list[DecisionNode] = []
        fork = self
        while fork.parent is not None:
            way.append(fork)
            fork = fork.parent
        return way[::-1]

    def leaves(self) -> Iterator[DecisionNode]:
        stack = [self]
        while stack:
            fork = stack.pop()
            if not fork.children:
                yield fork
            stack.extend(reversed(fork.children.values()))

    def log_probability(self) -> float:
        """The log prior probability that an execution comes here.

        Exact where every question on the way is about a discrete site with known parameters. Otherwise answers are
        counted, and a share is set aside for ends that no execution has met (`unmet`).
        """
        total, counted, fork = 0.0, False, self
        while fork.parent is not None:
            counted |= fork.answer_key not in fork.parent.shares
            total += fork.parent.log_probability_of(fork.answer_key)
            fork = fork.parent
        return total + (math.log1p(-fork.unmet()) if counted else 0.0)

    def log_probability_of(self, answer_key: Any) -> float:
        """The log prior probability of an answer here, given that an execution comes here."""
        if answer_key in self.shares:
            log_total, count = self.shares[answer_key]
            return log_total - math.log(count)
        visits = self.children[answer_key].visits
        return math.log(visits / (self.visits - self.undone)) if visits else -math.inf

    def unmet(self) -> float:
        """The share of executions that would come to an end not met yet, after Good and Turing: of those met once."""
        if self._unmet is None or self._unmet[0] != self.visits:
            ends = [fork for fork in self.leaves() if fork.end is not None or fork.remainder]
            once = sum(fork.visits == 1 and fork.is_counted() for fork in ends)
            self._unmet = self.visits, once / (self.visits + 1)
        return self._unmet[1]

    def is_counted(self) -> bool:
        """Whether the probability of coming here rests on counting executions."""
        return any(fork.answer_key not in fork.parent.shares for fork in self.way() if fork.parent is not None)
