"""What no execution has met: a side of a condition, or a value of a discrete site that decisions depend on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpyro.distributions as dist

from anabranch.divide.decision_node import DecisionNode
from anabranch.divide.distributions import base_support
from anabranch.divide.graph import Node, evaluate
from anabranch.divide.internals import as_input
from anabranch.divide.recording import Decision, Recording, Site

__all__ = ["UnmetAnswer", "UnmetValue", "bounds_of", "unmet_answers", "unmet_in_words", "unmet_values"]

_FEW_VALUES = 20
"""Values of a site, up to which those that were not met are named."""
_MAX_SENTENCES = 20
_MAX_GAP = 1_000
"""Values between two that were met, up to which all of them may be tried."""


@dataclass(frozen=True)
class UnmetAnswer:
    """An answer to a condition at a node of the tree that no execution has given there."""

    node: DecisionNode
    answer: np.ndarray

    @property
    def recording(self) -> Recording:
        assert self.node.recording is not None
        return self.node.recording

    @property
    def before(self) -> list[Decision]:
        """The decisions on the way to the node."""
        return list(_decisions(self.node)[: len(self.node.way())])

    @property
    def decision(self) -> Decision:
        """The decision at the node, with the other answer."""
        return _decisions(self.node)[len(self.node.way())]


@dataclass(frozen=True)
class UnmetValue:
    """A value of a discrete site that no execution has met, and a node of the tree at which it may be met."""

    node: DecisionNode
    site: Site
    value: int

    @property
    def log_mass(self) -> float:
        """The log probability of the value there; minus infinity where it is not known."""
        recording, answer = self.node.recording, np.asarray(self.value, np.int64)
        assert recording is not None
        constant = recording.log_mass(self.site, answer)
        if constant is not None:
            return float(constant)
        if not self.node.parameters:
            return -np.inf
        value, result = recording.mass_function(self.site)
        env = {**{node: known[:1] for node, known in self.node.parameters[0].items()}, value: answer[None]}
        evaluate(recording.trace.graph.schedule([result], env), env)
        return float(env[result][0]) if isinstance(result, Node) else float(result)

    @property
    def given(self) -> dict[str, np.ndarray]:
        """The values that lead there."""
        recording = self.node.recording
        assert recording is not None
        before = recording.decisions[: len(self.node.way())]
        values = {recording.sites[d.site].name: d.answer for d in before if d.site is not None}
        return {**values, self.site.name: np.asarray(self.value, np.int64)}


def _decisions(node: DecisionNode) -> Sequence[Decision]:
    assert node.kept is not None
    return node.kept.decisions


def _questions(root: DecisionNode) -> Iterator[DecisionNode]:
    """The nodes of the tree that ask something, the earlier before the later."""
    waiting = [root]
    for node in waiting:
        waiting.extend(node.children.values())
        if node.question is not None and node.kept is not None and node.children:
            yield node


def unmet_answers(root: DecisionNode) -> list[UnmetAnswer]:
    """The sides of conditions on random reals that were not met, at each node of the tree."""
    found = []
    for node in _questions(root):
        answers = [child.answer for child in node.children.values() if child.answer is not None]
        if _is_condition(node) and len(answers) == 1:
            found.append(UnmetAnswer(node, ~answers[0]))
    return found


def _is_condition(node: DecisionNode) -> bool:
    first = next(iter(node.children.values())).answer
    return (
        node.question is not None
        and node.question[0] is None
        and first is not None
        and (first.dtype == bool and first.ndim == 0)
    )


def unmet_values(root: DecisionNode, beyond: int) -> list[UnmetValue]:
    """The values of discrete sites that no execution has met anywhere, up to so many beyond those that were met; of a
    large gap between these, its ends.

    A site is asked at many nodes: the value would be met at the one that most executions come to, without guards on the
    way to it, which executions with this value need not meet.
    """
    found: list[UnmetValue] = []
    for nodes in _asking_for_sites(root).values():
        met = {int(child.answer) for node in nodes for child in node.children.values() if child.answer is not None}
        most_visited = sorted(nodes, key=lambda node: -node.visits)
        node = next((node for node in most_visited if _is_without_guard(node)), None)
        if node is None or not met:
            continue
        site = _site(node)
        low, high = (float(bound[0]) for bound in bounds_of(site))
        found += [UnmetValue(node, site, value) for value in _near(met, beyond) if low <= value <= high]
    return found


def _is_without_guard(node: DecisionNode) -> bool:
    return not any(each.parent.question[0] is None for each in node.way())  # type: ignore[union-attr,index]


def _near(met: set[int], beyond: int) -> Iterator[int]:
    """The values between those that were met and up to so many beyond them, in order; of a large gap, its ends."""
    values = sorted(met)
    yield from range(values[0] - beyond, values[0])
    for low, high in pairwise(values):
        if high - low <= _MAX_GAP:
            yield from range(low + 1, high)
        else:
            yield from (*range(low + 1, low + 1 + beyond), *range(high - beyond, high))
    yield from range(values[-1] + 1, values[-1] + 1 + beyond)


def _asking_for_sites(root: DecisionNode) -> Mapping[str, list[DecisionNode]]:
    """The nodes that ask for the value of a discrete site that is one number, by the name of the site."""
    asking: defaultdict[str, list[DecisionNode]] = defaultdict(list)
    for node in _questions(root):
        if node.asked is not None and node.asked[1] == ():
            asking[node.asked[0]].append(node)
    return asking


def _site(node: DecisionNode) -> Site:
    assert node.recording is not None
    assert node.question is not None
    assert node.question[0] is not None
    return node.recording.sites[node.question[0]]


def unmet_in_words(root: DecisionNode) -> list[str]:
    """What was not met, one sentence for each condition of the program and each discrete site."""
    asked: defaultdict[tuple[str, str], int] = defaultdict(int)
    unmet: defaultdict[tuple[str, str, bool], int] = defaultdict(int)
    for node in _questions(root):
        if _is_condition(node):
            decision = _decisions(node)[len(node.way())]
            asked[decision.source[0], decision.where] += 1
    for each in unmet_answers(root):
        unmet[each.decision.source[0], each.decision.where, bool(each.answer)] += 1
    sentences = []
    for (text, where, answer), number in unmet.items():
        total, side = asked[text, where], "true" if answer else "false"
        more = "" if number == total else f" after {number} of the {total} ways that lead there"
        sentences.append(f"`{text}` ({where}) was never {side}{more}")
    values: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for value in unmet_values(root, _FEW_VALUES):
        low, high = (float(bound[0]) for bound in bounds_of(value.site))
        if high - low < _FEW_VALUES:
            values[value.site.name, value.site.where].append(str(value.value))
    sentences += [f"`{name}` ({where}) was never {' or '.join(never)}" for (name, where), never in values.items()]
    return sentences[:_MAX_SENTENCES]


def bounds_of(site: Site) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest value of each entry of a discrete site, infinite where they are not known."""
    support = base_support(site.support)
    if support is dist.constraints.boolean:
        return _bound(0, site), _bound(1, site)
    low, high = (getattr(support, name, None) for name in ("lower_bound", "upper_bound"))
    return _bound(low, site, -np.inf), _bound(high, site, np.inf)


def _bound(value: Any, site: Site, otherwise: float = 0.0) -> np.ndarray:
    value = as_input(value)
    known = value is not None and not isinstance(value, Node)
    return np.broadcast_to(np.asarray(value if known else otherwise, float), site.shape).reshape(-1)
