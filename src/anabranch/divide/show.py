"""The tree of decisions as a picture in text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

__all__ = ["Ending", "draw_tree"]


@dataclass(frozen=True)
class Ending:
    """An end of the tree: the decisions that lead there, in words, what is there, and its prior probability."""

    decisions: tuple[str, ...]
    label: str
    probability: float


@dataclass
class _Branch:
    probability: float = 0.0
    label: str = ""
    branches: dict[str, _Branch] = field(default_factory=dict)


def draw_tree(title: str, endings: Iterable[Ending], limit: int) -> str:
    """One line per decision, indented; the `limit` most probable endings, and how many were left out."""
    ordered = sorted(endings, key=lambda ending: -ending.probability)
    root = _Branch()
    for ending in ordered[:limit]:
        branch = root
        branch.probability += ending.probability
        for decision in ending.decisions:
            branch = branch.branches.setdefault(decision, _Branch())
            branch.probability += ending.probability
        branch.label = ending.label
    lines = [title, *_lines(root, "")] if root.branches else [f"{title}: {root.label}"]
    rest = ordered[limit:]
    if rest:
        lines.append(f"... and {len(rest)} more, {sum(e.probability for e in rest):.3g} of the prior")
    return "\n".join(lines)


def _lines(branch: _Branch, indent: str) -> Iterator[str]:
    last = len(branch.branches) - 1
    for i, (decision, below) in enumerate(branch.branches.items()):
        # A chain of decisions without an alternative reads better on one line.
        while len(below.branches) == 1 and not below.label:
            [(following, below)] = below.branches.items()
            decision = f"{decision}, {following}"
        note = f"  {below.label}" if below.label else ""
        yield f"{indent}{'└─' if i == last else '├─'} {decision}  [{below.probability:.4g}]{note}"
        yield from _lines(below, indent + ("   " if i == last else "│  "))
