"""The tree of decisions as a picture in text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from anabranch.settings import whole

__all__ = ["Leaf", "counted", "draw_tree"]


@dataclass(frozen=True)
class Leaf:
    """A leaf of the tree: the decisions that lead there, each with a key and its words, and a label."""

    decisions: tuple[tuple[Any, str], ...]
    label: str
    probability: float


@dataclass
class _Branch:
    text: str = ""
    probability: float = 0.0
    label: str = ""
    shown: bool = False
    ends: int = 0
    branches: dict[Any, _Branch] = field(default_factory=dict)


def draw_tree(title: str, leaves: Iterable[Leaf], limit: int) -> str:
    """One line per decision, indented; the `limit` most probable leaves, and how many were left out where."""
    limit = whole(1)("limit", limit)
    root = _Branch()
    for rank, leaf in enumerate(sorted(leaves, key=lambda leaf: -leaf.probability)):
        way = [root]
        for key, text in leaf.decisions:
            way.append(way[-1].branches.setdefault(key, _Branch(text)))
        for branch in way:
            branch.probability += leaf.probability
            branch.ends += 1
            branch.shown |= rank < limit
        way[-1].label = leaf.label
    return "\n".join([title, *_lines(root, "")]) if root.branches else f"{title}: {root.label}"


def counted(texts: Sequence[str]) -> str:
    """Decisions on one line, each once: a loop asks the same question again and again."""
    return ", ".join(f"{text} ×{texts.count(text)}" if texts.count(text) > 1 else text for text in dict.fromkeys(texts))


def _lines(branch: _Branch, indent: str) -> Iterator[str]:
    shown = [below for below in branch.branches.values() if below.shown]
    left_out = [below for below in branch.branches.values() if not below.shown]
    for i, below in enumerate(shown):
        last = i == len(shown) - 1 and not left_out
        texts = [below.text]
        # A chain of decisions without an alternative reads better on one line.
        while len(below.branches) == 1 and not below.label:
            [below] = below.branches.values()
            texts.append(below.text)
        note = f"  {below.label}" if below.label else ""
        yield f"{indent}{'└─' if last else '├─'} {counted(texts)}  [{below.probability:.4g}]{note}"
        yield from _lines(below, indent + ("   " if last else "│  "))
    if left_out:
        ends = sum(below.ends for below in left_out)
        yield f"{indent}└─ ... {ends} more  [{sum(below.probability for below in left_out):.4g}]"
