"""A node of the tree of decisions, and the prior probability of coming there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from anabranch.divide.batch import stable_hash
from anabranch.divide.graph import Node
from anabranch.divide.kept import Kept
from anabranch.divide.recording import Recording

if TYPE_CHECKING:
    from anabranch.divide.path import Path

__all__ = ["DecisionNode", "Question"]

Question = tuple[int | None, int | None]
"""The number of the site whose value is asked for, or the node of the graph that is."""


_NO_CHILDREN: Mapping[Any, DecisionNode] = MappingProxyType({})


@dataclass(eq=False, slots=True)
class DecisionNode:
    """A node of the tree.

    With a `question`, it has a child for each answer that was met, and the `recording` of a run that asked it, with
    `observed` observations before; `asked` has the name and the shape of the site, if that is about one. With a
    `recording` and no question it is a leaf: the recording is of a whole run, and `path` is its path. It is `truncated`
    if it leads beyond the bound on sites, and `interpreted` if only the interpreter can run the program from here; its
    children are then the paths met. Else it is unexplored.
    """

    parent: DecisionNode | None = None
    answer_key: Any = None
    answer: np.ndarray | None = None
    key: int = 0
    question: Question | None = None
    kept: Kept | None = None
    asked: tuple[str, tuple[int, ...]] | None = None
    observed: int = 0
    path: Path | None = None
    truncated: bool = False
    interpreted: bool = False
    visits: int = 0
    undone: int = 0  # visits that a limit ended before the interpreter had run them
    # Where the question before is about the value of a site: the prior probability of the answer that leads here, as
    # the log of a sum and a count; and of a node with such a question, the parameters of the site.
    share: tuple[float, int] | None = None
    parameters: Sequence[dict[Node, np.ndarray]] = ()
    constant: bool = False  # whether these probabilities are the same for every execution, so that they are final
    _children: DecisionNode | dict[Any, DecisionNode] | None = None  # most nodes have one, which needs no dictionary
    _final: float | None = None
    _unmet: tuple[int, float] | None = None

    @property
    def recording(self) -> Recording | None:
        """The recording, if there is one; made again if it was dropped."""
        return None if self.kept is None else self.kept.recording

    @property
    def unexplored(self) -> bool:
        return self.kept is None and not self.truncated and not self.interpreted

    @property
    def is_cold(self) -> bool:
        """Whether it has a question whose recording was dropped."""
        return self.question is not None and self.kept is not None and not self.kept.is_there

    @property
    def is_leaf(self) -> bool:
        return self.kept is not None and self.question is None

    @property
    def children(self) -> Mapping[Any, DecisionNode]:
        """The nodes that follow, by the answer."""
        own = self._children
        if own is None:
            return _NO_CHILDREN
        return {own.answer_key: own} if isinstance(own, DecisionNode) else own

    def child(self, answer_key: Any, answer: np.ndarray | None) -> DecisionNode:
        """The node that follows an answer; made if there is none."""
        known = self.children
        if answer_key in known:
            return known[answer_key]
        if answer is not None and self.kept is not None:
            recent = self.kept.program.recent
            answer_key, answer = recent.same(answer_key), recent.same_array(answer)
        new = DecisionNode(self, answer_key, answer, stable_hash(self.key, answer_key))
        if isinstance(self._children, dict):
            self._children[answer_key] = new
        else:
            self._children = {**known, answer_key: new} if known else new
        return new

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
            if node._children is None:
                yield node
            stack.extend(reversed(list(node.children.values())))

    def log_probability(self) -> float:
        """The log prior probability that an execution comes here.

        Exact where every question on the way is about a discrete site with known parameters. Otherwise answers are
        counted, and a share is set aside for leaves that no execution has met (`unmet`).
        """
        if self._final is not None:
            return self._final
        total, counted, final, node = 0.0, False, True, self
        while node.parent is not None:
            counted |= node.share is None
            final &= node.parent.constant
            total += node.parent.log_probability_of(node.answer_key)
            node = node.parent
        if final and not counted:
            self._final = total
        return total + (math.log1p(-node.unmet()) if counted else 0.0)

    def log_probability_of(self, answer_key: Any) -> float:
        """The log prior probability of an answer here, given that an execution comes here."""
        child = self.children[answer_key]
        if child.share is not None:
            log_total, count = child.share
            return log_total - math.log(count)
        return math.log(child.visits / (self.visits - self.undone)) if child.visits else -math.inf

    def unmet(self) -> float:
        """The probability that the next execution comes to a leaf not met yet (Good and Turing): of those met once."""
        if self._unmet is None or self._unmet[0] != self.visits:
            met = [node for node in self.childless() if node.is_leaf or node.truncated]
            once = sum(node.visits == 1 and node.is_counted() for node in met)
            self._unmet = self.visits, once / (self.visits + 1)
        return self._unmet[1]

    def is_counted(self) -> bool:
        """Whether the probability of coming here rests on counting executions."""
        return any(node.share is None for node in self.way())
