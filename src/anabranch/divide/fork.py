"""A place in the tree of decisions, and the prior probability of coming there."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anabranch.divide.graph import Node
from anabranch.divide.interpret import Execution
from anabranch.divide.recording import Recording

__all__ = ["Fork", "Question"]

Question = tuple[int | None, int | None]
"""The number of the site whose value is asked for, or the node of the graph that is."""


@dataclass(eq=False)
class Fork:
    """A place in the tree.

    It is unexplored until it has a `question`, an `end` (the recording of a whole run), is known to lead beyond the
    bound on sites (`remainder`), or leads to a part of the program that only the interpreter can run (`interpreted`,
    whose edges are the paths met rather than answers).
    """

    parent: Fork | None = None
    answer_key: Any = None
    answer: np.ndarray | None = None
    key: int = 0
    question: Question | None = None
    recording: Recording | None = None
    end: Recording | Execution | None = None
    remainder: bool = False
    interpreted: bool = False
    visits: int = 0
    children: dict[Any, Fork] = field(default_factory=dict)
    # For a question about the value of a site: the prior probability of each answer, as a sum and a count.
    shares: dict[Any, tuple[float, int]] = field(default_factory=dict)
    parameters: list[dict[Node, np.ndarray]] = field(default_factory=list)

    @property
    def unexplored(self) -> bool:
        return self.question is None and self.end is None and not self.remainder and not self.interpreted

    def child(self, answer_key: Any, answer: np.ndarray | None) -> Fork:
        if answer_key not in self.children:
            self.children[answer_key] = Fork(self, answer_key, answer, zlib.crc32(repr(answer_key).encode(), self.key))
        return self.children[answer_key]

    def way(self) -> list[Fork]:
        """The forks from below the root to here."""
        way: list[Fork] = []
        fork = self
        while fork.parent is not None:
            way.append(fork)
            fork = fork.parent
        return way[::-1]

    def leaves(self) -> Iterator[Fork]:
        stack = [self]
        while stack:
            fork = stack.pop()
            if not fork.children:
                yield fork
            stack.extend(reversed(fork.children.values()))

    def log_probability(self) -> float:
        """The log prior probability that an execution comes here."""
        total, fork = 0.0, self
        while fork.parent is not None:
            probability = fork.parent.probability_of(fork.answer_key)
            total += math.log(probability) if probability > 0 else -math.inf
            fork = fork.parent
        return total

    def probability_of(self, answer_key: Any) -> float:
        """The prior probability of an answer here, given that an execution comes here.

        Exact where the question is the value of a discrete site whose parameters are known. A guard is estimated by
        the executions that came by, less a share for the answers never met: the rule of succession for a yes or no,
        Good and Turing's estimate (the share of answers met once) for more.
        """
        if answer_key in self.shares:
            total, count = self.shares[answer_key]
            return total / count
        if not self.visits:
            return 0.0
        return self.children[answer_key].visits / self.visits * (1 - self._unmet())

    def _unmet(self) -> float:
        answers = [fork.answer for fork in self.children.values()]
        if all(a is not None and a.dtype == bool and a.ndim == 0 for a in answers):
            return 0.0 if len(answers) == 2 else 1 / (self.visits + 2)
        return sum(fork.visits == 1 for fork in self.children.values()) / self.visits
