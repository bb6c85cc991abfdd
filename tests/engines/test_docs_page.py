"""The code of docs/engines.md runs, and what its comments say comes out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import anabranch as ab

PAGE = (Path(__file__).parent.parent.parent / "docs" / "engines.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_page() -> None:
    space: dict = {}
    posteriors = {}
    for number, block in enumerate(BLOCKS):
        exec(block, space)
        posteriors[number] = space["posterior"]
    assert posteriors[0].log_evidence == pytest.approx(-2.989, abs=0.05)
    dice = next(posteriors[number] for number, block in enumerate(BLOCKS) if "def dice" in block)
    assert dice.probability("one")[5] == pytest.approx(0.5, abs=0.05)
    jumps = next(posteriors[number] for number, block in enumerate(BLOCKS) if "def split_merge" in block)
    for K, exact in ((3, 0.372), (4, 0.334), (5, 0.295)):
        assert jumps.probability("K")[K] == pytest.approx(exact, abs=0.03)


def test_every_engine_is_on_the_page() -> None:
    for name in ab.engines.__all__:
        assert name in PAGE, name
