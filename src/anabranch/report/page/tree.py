"""The tree of decisions as nested lists whose lines open and close."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anabranch.combine.solution import Solution
from anabranch.divide import Line, lines_of
from anabranch.report.leaves import leaves_of
from anabranch.report.page.elements import bar, text
from anabranch.report.table import number, power_of_ten, shortened

__all__ = ["nested"]

MAX_ENDS, MAX_DEPTH = 200, 40
"""Ends of the tree that are shown, and levels."""
MAX_LEAVES = 20_000
"""Paths, the heaviest, that the tree is made of."""
OPEN = 0.05
"""Probability from which on a line is open at first."""
MAX_CHARACTERS = 300
_BUTTONS = (
    '<p class="buttons"><button type="button" data-tree="open">Open all</button> '
    '<button type="button" data-tree="close">Close all</button></p>'
)


def nested(solutions: Sequence[Solution], weights: np.ndarray) -> str:
    """The heaviest ends of the tree, and what leads there; empty without mass or without a decision."""
    if not (weights > 0).any():
        return ""
    chosen = slice(0, MAX_LEAVES)
    root = lines_of(leaves_of(solutions[chosen], weights[chosen]), MAX_ENDS)
    if not root.below:
        return ""
    lines = _list(root, 0)
    box = f'<div class="tree scrolls" tabindex="0" role="region" aria-label="Tree">{lines}</div>'
    return f"{_BUTTONS}{box}" if "<details" in lines else box


def _list(line: Line, depth: int) -> str:
    shown = [below for below in line.below if below.shown]
    left_out = [below for below in line.below if not below.shown]
    parts = [_item(below, depth) for below in shown]
    if left_out:
        ends, mass = sum(below.ends for below in left_out), sum(below.probability for below in left_out)
        parts.append(f"<li>{_words(f'{ends:,} more', mass)}</li>")
    return f"<ul>{''.join(parts)}</ul>"


def _item(line: Line, depth: int) -> str:
    words = _words(line.text, line.probability, line.note)
    if not line.below:
        return f"<li>{words}</li>"
    if depth + 1 >= MAX_DEPTH:
        return f"<li>{words} <small>and {line.ends:,} ends below</small></li>"
    is_open = " open" if line.probability >= OPEN else ""
    return f"<li><details{is_open}><summary>{words}</summary>{_list(line, depth + 1)}</details></li>"


def _words(words: str, probability: float, note: str = "") -> str:
    """The decision, its probability, and a remark."""
    mass = number(probability, 3) if probability >= 1e-3 or probability == 0 else power_of_ten(probability)
    remark = f" <small>{text(note)}</small>" if note else ""
    return f"{text(shortened(words, MAX_CHARACTERS))} {bar(probability)}<b>{mass}</b>{remark}"
