"""The code of docs/engines.md runs, and what its comments say comes out."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import anabranch as ab

PAGE = (Path(__file__).parent.parent.parent / "docs" / "engines.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize("cheaper", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_the_page(cheaper: int) -> None:
    """With a fourth of the budgets, at twice the error; with the budgets that are written there it takes long."""
    space: dict = {}
    posteriors = {}
    for number, block in enumerate(BLOCKS):
        exec(re.sub(r"(budget=)([0-9_]+)", lambda match: f"{match[1]}{int(match[2]) // cheaper}", block), space)
        posteriors[number] = space["posterior"]
    times = np.sqrt(cheaper)
    assert posteriors[0].log_evidence == pytest.approx(-2.989, abs=0.05 * times)
    dice = next(posteriors[number] for number, block in enumerate(BLOCKS) if "def dice" in block)
    assert dice.probability("one")[5] == pytest.approx(0.5, abs=0.05 * times)
    jumps = next(posteriors[number] for number, block in enumerate(BLOCKS) if "def split_merge" in block)
    for K, exact in ((3, 0.372), (4, 0.334), (5, 0.295)):
        assert jumps.probability("K")[K] == pytest.approx(exact, abs=0.03 * times)


def test_every_engine_is_on_the_page() -> None:
    for name in ab.engines.__all__:
        assert name in PAGE, name
