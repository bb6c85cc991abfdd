"""The tree of decisions as a picture in text: one line for each decision, path, or family of paths."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import groupby, pairwise

from anabranch.divide.families import CONDITION, Asked, Branch, Group, Leaf, Subtree, grown
from anabranch.divide.sequences import counted
from anabranch.divide.support import Bounds
from anabranch.settings import whole

__all__ = ["Line", "draw_tree", "lines_of"]

FOLDED_ABOVE = 8
"""Paths of a family, above which it is one line."""
_LISTED = 4
"""Names or values that are listed one by one, if they are no series."""
_BINARY = (Bounds(0, 1),)
"""The support of a choice between two."""
_READABLE = 10**15
"""Combinations, above which only the power of ten is said."""

_Answers = dict[Hashable, tuple[str, Asked]]
"""Answers to one question, by key, each with its words."""


@dataclass(eq=False)
class Line:
    """A line of the tree, and the lines below it. `ends` are the leaves of the tree that it stands for."""

    text: str
    probability: float
    ends: int
    note: str = ""
    above: Line | None = None
    below: list[Line] = field(default_factory=list)
    shown: bool = False


@dataclass(frozen=True)
class _Family:
    """What follows each of a number of combinations of answers."""

    below: Subtree
    combinations: int


def draw_tree(title: str, leaves: Iterable[Leaf], limit: int) -> str:
    """One line per decision or family, indented; the `limit` most probable ends, and how many were left out where."""
    root = lines_of(leaves, whole(1)("limit", limit))
    return "\n".join([title, *_drawn(root, "")]) if root.below else f"{title}: {root.note}"


def lines_of(leaves: Iterable[Leaf], limit: int) -> Line:
    """The tree as lines, in which the `limit` most probable ends, and what leads there, are `shown`."""
    tree = grown(leaves)
    assert tree.merged is not None
    root = _line("", tree.merged)
    open_lines: list[tuple[Line, Branch | _Family]] = [(root, tree)]
    ends = []
    while open_lines:
        line, place = open_lines.pop()
        following = list(_following(place) if isinstance(place, Branch) else _following_family(place))
        for below, _ in following:
            below.above = line
        line.below = sorted((below for below, _ in following), key=lambda each: -each.probability)
        open_lines.extend(reversed(following))
        if not following:
            ends.append(line)
    for end in nlargest(limit, ends, key=lambda each: each.probability):
        line_above: Line | None = end
        while line_above is not None and not line_above.shown:
            line_above.shown = True
            line_above = line_above.above
    return root


def _drawn(line: Line, indent: str) -> Iterator[str]:
    shown = [below for below in line.below if below.shown]
    left_out = [below for below in line.below if not below.shown]
    for below in shown:
        last = below is shown[-1] and not left_out
        note = f"  {below.note}" if below.note else ""
        yield f"{indent}{'└─' if last else '├─'} {below.text}  [{below.probability:.4g}]{note}"
        yield from _drawn(below, indent + ("   " if last else "│  "))
    if left_out:
        ends = sum(below.ends for below in left_out)
        yield f"{indent}└─ ... {ends:,} more  [{sum(below.probability for below in left_out):.4g}]"


def _following(branch: Branch) -> Iterator[tuple[Line, Branch | _Family]]:
    """The lines after a branch, each with where it leads: on its own, or merged with those that are alike."""
    assert branch.merged is not None
    for group in branch.merged.groups:
        if _is_one_line(group):
            yield _family([], group, 1)
            continue
        for key in group.asked:
            following, way = branch.branches[key], [group.asked[key]]
            # A chain of decisions without an alternative reads better on one line.
            while len(following.branches) == 1:
                [following] = following.branches.values()
                assert following.asked is not None
                way.append((following.text, following.asked))
            assert following.merged is not None
            groups = following.merged.groups
            if len(groups) == 1 and _is_one_line(groups[0]):
                yield _family([{None: each} for each in way], groups[0], 1)
            else:
                yield _line(counted([text for text, _ in way]), following.merged), following


def _following_family(family: _Family) -> Iterator[tuple[Line, Branch | _Family]]:
    for group in family.below.groups:
        yield _family([], group, family.combinations)


def _is_one_line(group: Group) -> bool:
    return len(group.asked) > 1 and group.below.ends > FOLDED_ABOVE


def _family(before: Sequence[_Answers], group: Group, combinations: int) -> tuple[Line, _Family]:
    """The line of a group of answers, and of the questions after it up to one whose answers lead on differently."""
    questions, below = [*before, group.asked], group.below
    while len(below.groups) == 1:
        questions.append(below.groups[0].asked)
        below = below.groups[0].below
    for asked in questions:
        combinations *= len(asked)
    return _line(_in_words(questions, below, combinations * below.combinations), below), _Family(below, combinations)


def _line(text: str, subtree: Subtree) -> Line:
    if subtree.groups:
        return Line(text, subtree.probability, subtree.ends)
    parts = [_dimensions(*subtree.dims)] if subtree.dims is not None else []
    return Line(text, subtree.probability, subtree.ends, ", ".join([*parts, *filter(None, [subtree.remark])]))


def _dimensions(low: int, high: int) -> str:
    return f"{low} dimension{'' if low == 1 else 's'}" if low == high else f"{low} to {high} dimensions"


def _in_words(questions: Sequence[_Answers], below: Subtree, combinations: int) -> str:
    """`K = 3 … 17: 15 paths`, `z0 … z11: any subset; 3,012 of 4,096 paths found`."""
    parts: list[str] = []
    for kind, run in groupby(questions, _kind):
        each = list(run)
        if kind == "fixed":
            parts.append(counted([text for asked in each for text, _ in asked.values()]))
        elif kind == "subset" and len(each) > 1:
            parts.append(f"{_names([str(_question(asked)) for asked in each])}: any subset")
        elif kind == "condition":
            parts.append(counted([f"{_question(asked)} or not" for asked in each]))
        else:
            parts.extend(map(_values, each))
    what = "path" if below.unique else "decision sequence"
    what += "" if combinations == 1 else "s"
    total = f"{combinations:,}" if combinations < _READABLE else f"about 10^{len(str(combinations)) - 1}"
    count = f"{total} {what}" if below.ends == combinations else f"{below.ends:,} of {total} {what} found"
    text = "; ".join(parts)
    return text if combinations == 1 else f"{text}{'; ' if text.endswith('any subset') else ': '}{count}"


def _kind(asked: _Answers) -> str:
    if len(asked) == 1:
        return "fixed"
    each = next(iter(asked.values()))[1]
    if each.support == CONDITION and {each.value for _, each in asked.values()} == {0, 1}:
        return "condition"
    return "subset" if each.support == _BINARY else "values"


def _question(asked: _Answers) -> Hashable:
    return next(iter(asked.values()))[1].question


def _values(asked: _Answers) -> str:
    """`K = 3 … 17`; values that are no whole numbers are counted."""
    values = sorted(each.value for _, each in asked.values() if each.value is not None)
    if len(values) < len(asked):
        return f"{_question(asked)}: {len(asked):,} values"
    if len(values) > 2 and values[-1] - values[0] == len(values) - 1:
        return f"{_question(asked)} = {values[0]} … {values[-1]}"
    if len(values) <= _LISTED:
        return f"{_question(asked)} = {' or '.join([', '.join(map(str, values[:-1])), str(values[-1])])}"
    return f"{_question(asked)} = {values[0]} … {values[-1]} ({len(values):,} values)"


def _names(names: Sequence[str]) -> str:
    """`z0 … z11` for names that are numbered, else the first ones."""
    first = f"{names[0]}[0]" if names[1:2] == [f"{names[0]}[1]"] else names[0]  # visits are counted from the second on
    numbered = [match for name in [first, *names[1:]] if (match := re.fullmatch(r"(.*?)(\d+)\]?", name))]
    stems, numbers = {match[1] for match in numbered}, [int(match[2]) for match in numbered]
    if len(numbered) == len(names) > 2 and len(stems) == 1 and all(b - a == 1 for a, b in pairwise(numbers)):
        return f"{names[0]} … {names[-1]}"
    if len(names) <= _LISTED:
        return ", ".join(names)
    return f"{', '.join(names[: _LISTED - 1])}, …, {names[-1]} ({len(names):,} choices)"
