"""Families of paths: answers of a decision after which the program goes on alike.

The decisions of all paths form a tree, whose edges are answers. What follows two answers of one question is *alike* if
the same questions are asked there, and if the same answers lead on alike. Paths that were not found do not stand in the
way: an answer that is missing in one of two subtrees is taken to be possible there, unless the answers met there have
all of the probability, or other bounds. Alike subtrees are merged, from the leaves to the root:

    z0 = 0 ┬ z1 = 0            z0 = 0 or 1, z1 = 0 or 1:
           └ z1 = 1     →      3 paths of the 4 combinations of these answers
    z0 = 1 ─ z1 = 0

A merge takes as many steps as the smaller of two subtrees has merged nodes, so that the time is in proportion to the
number of decisions in the tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from anabranch.divide.decision_node import DecisionNode
from anabranch.divide.path import Path
from anabranch.divide.recording import Recording, Site
from anabranch.divide.support import bounds_of

__all__ = ["CONDITION", "Asked", "Branch", "Group", "Leaf", "Subtree", "grown", "leaf_at", "leaf_of"]

_ALL = 1 - 1e-9
"""Probability of the answers met, from which on there are no others."""
_MANY = 20
"""Executions that ask a condition, after which the answers met are taken to be all that there are."""
CONDITION = "condition"
"""The support of a question that is no site."""
_CANDIDATES = 8
"""Groups of answers with which another answer is compared."""

Dims = tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Asked:
    """A question and an answer to it.

    Attributes:
        question: the name of the site, or the condition with its line.
        value: the answer where it is a whole number or a truth value; None: another.
        support: what two questions must share to have the same possible answers.
        mass: the probability of the answer, zero where it is not known; the answers met are taken to be all that there
            are if their masses add up to one.
    """

    question: Hashable
    value: int | None = None
    support: Hashable = None
    mass: float = 1.0


@dataclass(frozen=True)
class Leaf:
    """An end of the tree: the answers that lead there, each with a key and its words, and what is there.

    `asked` describes the answer with a given number, and is called once for each edge of the tree. A leaf that is not
    `unique` is one of several decision sequences of a path.
    """

    decisions: tuple[tuple[Hashable, str], ...]
    dim: int | None
    probability: float
    remark: str = ""
    unique: bool = True
    asked: Callable[[int], Asked] = field(default=lambda number: Asked(number), repr=False)


Known = dict[Any, tuple[Hashable, float]]
"""Supports and masses of answers, by distribution and answer: a program draws from the same few again and again."""


def leaf_at(node: DecisionNode, known: Known) -> Leaf:
    """A leaf of the tree of a division, with its prior probability; what it finds out is added to what is known."""
    recording, path, way = node.recording, node.path, node.way()
    assert recording is not None
    assert path is not None

    def asked(number: int) -> Asked:
        if recording.decisions[number].site is not None:
            return _asked_of_site(recording, number, known)
        parent = way[number].parent
        assert parent is not None
        # Of an answer to a condition no more is known than that it was met.
        share = way[number].visits / parent.visits if parent.visits >= _MANY else 0.0
        return _asked_of_condition(recording, number, share)

    decisions, unique = _answers(recording), path.sequences == 1
    return Leaf(decisions, path.dim, math.exp(node.log_probability()), unique=unique, asked=asked)


def leaf_of(path: Path, probability: float, known: Known) -> Leaf:
    """A path as a leaf, with a probability of its own; by its description if it has several decision sequences."""
    recording = path.recording
    if path.interpreted or path.sequences > 1:
        remark = "interpreted" if path.interpreted else ""
        decisions = ((path.signature, path.description),)
        return Leaf(decisions, path.dim, probability, remark, asked=lambda _: Asked(path.signature))

    def asked(number: int) -> Asked:
        if recording.decisions[number].site is None:
            return _asked_of_condition(recording, number)
        return _asked_of_site(recording, number, known)

    return Leaf(_answers(recording), path.dim, probability, asked=asked)


def _answers(recording: Recording) -> tuple[tuple[Hashable, str], ...]:
    return tuple((decision.answer.tobytes(), str(decision)) for decision in recording.decisions)


def _asked_of_condition(recording: Recording, number: int, mass: float = 1.0) -> Asked:
    decision = recording.decisions[number]
    return Asked(f"{decision.source[0]} ({decision.where})", _whole(decision.answer), CONDITION, mass)


def _asked_of_site(recording: Recording, number: int, known: Known) -> Asked:
    decision = recording.decisions[number]
    assert decision.site is not None
    site = recording.sites[decision.site]
    key = _key(site, decision.answer)
    if key is None or key not in known:
        known[key] = _support(recording, site, decision.answer)
    return Asked(site.name, _whole(decision.answer), *known[key])


def _key(site: Site, answer: np.ndarray) -> Hashable:
    content = None if site.described is None else site.described.content
    return None if site.described is None or content is None else (site.described.form, content, answer.tobytes())


def _support(recording: Recording, site: Site, answer: np.ndarray) -> tuple[Hashable, float]:
    """The bounds of a site and the probability of an answer; as if it were the only one where bounds may be random."""
    bounds, log_mass = tuple(bounds_of(site)), recording.log_mass(site, answer)
    if any(each is None or each.low is None or (each.high is None and log_mass is None) for each in bounds):
        return None, 1.0
    return bounds, 0.0 if log_mass is None else math.exp(log_mass)


def _whole(answer: np.ndarray) -> int | None:
    return int(answer) if answer.ndim == 0 and answer.dtype.kind in "biu" else None


class Group(NamedTuple):
    """Answers to one question after which the program goes on alike, each with its words, and what follows."""

    asked: dict[Hashable, tuple[str, Asked]]
    below: Subtree


class Subtree(NamedTuple):
    """What follows an answer: an end without `groups`, or the groups of answers to the next question.

    Attributes:
        groups: the answers, in groups that lead on alike.
        kind: what two subtrees must share to be alike, beside their answers.
        is_complete: whether the answers met are all that there are.
        ends: how many leaves there are.
        combinations: how many there would be if every combination of the answers had been met.
        probability: of all leaves together.
        dims: the smallest and the largest dimension of a leaf; None where it has none.
        remark: what is said of the leaves, where there are no groups.
        unique: whether each leaf is a path by itself.
    """

    groups: tuple[Group, ...]
    kind: Hashable
    is_complete: bool
    ends: int
    combinations: int
    probability: float
    dims: Dims
    remark: str
    unique: bool


@dataclass(eq=False, slots=True)
class Branch:
    """A node of the tree of decisions as it is: the last answer, the branches by answer, or a leaf; and it merged."""

    text: str = ""
    asked: Asked | None = None
    branches: dict[Hashable, Branch] = field(default_factory=dict)
    leaf: Leaf | None = None
    merged: Subtree | None = None


def grown(leaves: Iterable[Leaf]) -> Branch:
    """The tree with these leaves, in which every branch has its merged form."""
    root = Branch()
    for leaf in leaves:
        branch = root
        for number, (key, text) in enumerate(leaf.decisions):
            below = branch.branches.get(key)
            if below is None:
                below = branch.branches[key] = Branch(text, leaf.asked(number))
            branch = below
        branch.leaf = leaf
    for branch in _from_the_leaves(root):
        branch.merged = _subtree(branch)
    return root


def _from_the_leaves(root: Branch) -> Iterator[Branch]:
    """Every branch, after those below it; without recursion, since a program may take thousands of decisions."""
    order, stack = [], [root]
    while stack:
        branch = stack.pop()
        order.append(branch)
        stack.extend(branch.branches.values())
    return reversed(order)


def _subtree(branch: Branch) -> Subtree:
    """What follows a branch, given what follows those below it."""
    if branch.leaf is not None:
        leaf = branch.leaf
        dims = None if leaf.dim is None else (leaf.dim, leaf.dim)
        return Subtree((), leaf.remark, True, 1, 1, leaf.probability, dims, leaf.remark, leaf.unique)
    groups: list[Group] = []
    by_kind: dict[Any, list[int]] = {}
    for key, below in branch.branches.items():
        assert below.asked is not None
        assert below.merged is not None
        like = by_kind.setdefault((below.asked.question, below.merged.kind), [])
        for place in like[:_CANDIDATES]:
            merged = _merge(groups[place].below, below.merged)
            if merged is not None:
                groups[place].asked[key] = below.text, below.asked
                groups[place] = Group(groups[place].asked, merged)
                break
        else:
            like.append(len(groups))
            groups.append(Group({key: (below.text, below.asked)}, below.merged))
    asked = [each for below in branch.branches.values() if (each := below.asked) is not None]
    questions = {(each.question, each.support) for each in asked}
    # Where a program is interpreted, a node has an edge for each path, and no question.
    kind: Hashable = questions.pop() if len(questions) == 1 else object()
    return _joined(tuple(groups), kind, math.fsum(each.mass for each in asked) > _ALL)


def _joined(groups: tuple[Group, ...], kind: Hashable, is_complete: bool) -> Subtree:
    parts = [group.below for group in groups]
    first = parts[0]
    combinations = sum([len(group.asked) * group.below.combinations for group in groups])
    if len(parts) == 1:
        return Subtree(groups, kind, is_complete, first.ends, combinations, *first[5:])
    return Subtree(
        groups,
        kind,
        is_complete,
        sum([part.ends for part in parts]),
        combinations,
        math.fsum([part.probability for part in parts]),
        reduce(_span, [part.dims for part in parts]),
        first.remark,
        all(part.unique for part in parts),
    )


def _span(one: Dims, other: Dims) -> Dims:
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])


_Merging = Generator[tuple[Subtree, Subtree], Subtree | None, Subtree | None]


def _merge(one: Subtree, other: Subtree) -> Subtree | None:
    """Both as one, or None if they are not alike. Merges nest as deep as the tree, deeper than Python's stack."""
    waiting, result = [_merging(one, other)], None
    while waiting:
        try:
            pair = waiting[-1].send(result)
        except StopIteration as end:
            waiting.pop()
            result = end.value
        else:
            waiting.append(_merging(*pair))
            result = None
    return result


def _merging(one: Subtree, other: Subtree) -> _Merging:
    """The merge of two subtrees, which asks for the merges below them."""
    if one.kind != other.kind or bool(one.groups) != bool(other.groups):
        return None
    if not one.groups:
        return _both_ends(one, other)
    if (one.is_complete and not _covers(one, other)) or (other.is_complete and not _covers(other, one)):
        return None
    groups = list(one.groups)
    for group in other.groups:
        places = [i for i, known in enumerate(groups) if not known.asked.keys().isdisjoint(group.asked)]
        if len(places) > 1:
            return None  # what leads on alike in one of them does not in the other
        for place in places or range(min(len(groups), _CANDIDATES)):
            below = yield groups[place].below, group.below
            if below is not None:
                groups[place] = Group({**groups[place].asked, **group.asked}, below)
                break
        else:
            if places:
                return None  # the same answer does not lead on alike
            groups.append(group)
    return _joined(tuple(groups), one.kind, one.is_complete or other.is_complete)


def _covers(one: Subtree, other: Subtree) -> bool:
    """Whether one has all answers of the other."""
    if len(one.groups) == len(other.groups) == 1:
        return one.groups[0].asked.keys() >= other.groups[0].asked.keys()
    mine = {key for group in one.groups for key in group.asked}
    return all(key in mine for group in other.groups for key in group.asked)


def _both_ends(one: Subtree, other: Subtree) -> Subtree:
    ends, probability = one.ends + other.ends, one.probability + other.probability
    dims, unique = _span(one.dims, other.dims), one.unique and other.unique
    return Subtree((), one.kind, True, ends, 1, probability, dims, one.remark, unique)
