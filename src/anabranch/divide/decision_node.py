"""A node of the tree of decisions, and the prior probability of coming there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from anabranch.divide.batch import stable_hash
from anabranch.divide.graph import Node
from anabranch.divide.recording import Recording

if TYPE_CHECKING:
    from anabranch.divide.path import Path

__all__ = ["DecisionNode", "Question"]

Question = tuple[int | None, int | None]
"""The number of the site whose value is asked for, or the node of the graph that is."""


@dataclass(eq=False)
class DecisionNode:
    """A node of the tree.

    With a `question`, it has a child for each answer that was met, and the `recording` of a run that asked it, with
    `observed` observations before. With a `recording` and no question it is a leaf: the recording is of a whole run,
    and `path` is its path. It is `truncated` if it leads beyond the bound on sites, and `interpreted` if only the
    interpreter can run the program from here; its children are then the paths met. Else it is unexplored.
    """

    parent: DecisionNode | None = None
    answer_key: Any = None
    answer: np.ndarray | None = None
    key: int = 0
    question: Question | None = None
    recording: Recording | None = None
    observed: int = 0
    path: Path | None = None
    truncated: bool = False
    interpreted: bool = False
    visits: int = 0
    undone: int = 0  # visits that a limit ended before the interpreter had run them
    children: dict[Any, DecisionNode] = field(default_factory=dict)
    # For a question about the value of a site: the prior probability of each answer, as the log of a sum and a count.
    shares: dict[Any, tuple[float, int]] = field(default_factory=dict)
    parameters: list[dict[Node, np.ndarray]] = field(default_factory=list)
    constant: bool = False  # whether these probabilities are the same for every execution, so that they are final
    _final: float | None = None
    _unmet: tuple[int, float] | None = None

    @property
    def unexplored(self) -> bool:
        return self.recording is None and not self.truncated and not self.interpreted

    @property
    def is_leaf(self) -> bool:
        return self.recording is not None and self.question is None

    def child(self, answer_key: Any, answer: np.ndarray | None) -> DecisionNode:
        if answer_key not in self.children:
            self.children[answer_key] = DecisionNode(self, answer_key, answer, stable_hash(self.key, answer_key))
        return self.children[answer_key]

    def way(self) -> list[DecisionNode]:
        """The nodes from below the root to here."""
        way: list[DecisionNode] = []
        node = self
        while node.parent is not None:
            way.append(node)
            node = node.parent
        return way[::-1]

    @property
    def root(self) -> DecisionNode:
        node = self
        while node.parent is not None:
            node = node.parent
        return node

    def childless(self) -> Iterator[DecisionNode]:
        """The nodes without children, from here on: the leaves, and those that are truncated or not explored yet."""
        stack = [self]
        while stack:
            node = stack.pop()
            if not node.children:
                yield node
            stack.extend(reversed(node.children.values()))

    def log_probability(self) -> float:
        """The log prior probability that an execution comes here.

        Exact where every question on the way is about a discrete site with known parameters. Otherwise answers are
        counted, and a share is set aside for leaves that no execution has met (`unmet`).
        """
        if self._final is not None:
            return self._final
        total, counted, final, node = 0.0, False, True, self
        while node.parent is not None:
            counted |= node.answer_key not in node.parent.shares
            final &= node.parent.constant
            total += node.parent.log_probability_of(node.answer_key)
            node = node.parent
        if final and not counted:
            self._final = total
        return total + (math.log1p(-node.unmet()) if counted else 0.0)

    def log_probability_of(self, answer_key: Any) -> float:
        """The log prior probability of an answer here, given that an execution comes here."""
        if answer_key in self.shares:
            log_total, count = self.shares[answer_key]
            return log_total - math.log(count)
        visits = self.children[answer_key].visits
        return math.log(visits / (self.visits - self.undone)) if visits else -math.inf

    def unmet(self) -> float:
        """The probability that the next execution comes to a leaf not met yet (Good and Turing): of those met once."""
        if self._unmet is None or self._unmet[0] != self.visits:
            met = [node for node in self.childless() if node.is_leaf or node.truncated]
            once = sum(node.visits == 1 and node.is_counted() for node in met)
            self._unmet = self.visits, once / (self.visits + 1)
        return self._unmet[1]

    def is_counted(self) -> bool:
        """Whether the probability of coming here rests on counting executions."""
        return any(node.answer_key not in node.parent.shares for node in self.way() if node.parent is not None)
