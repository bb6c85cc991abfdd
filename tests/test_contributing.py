"""The worked examples of CONTRIBUTING run, and their assertions hold."""

import re
from pathlib import Path

import pytest

from anabranch.divide import samplers

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.fixture
def table(monkeypatch):
    """The table of samplers, restored after the test."""
    monkeypatch.setattr(samplers, "SAMPLERS", dict(samplers.SAMPLERS))
    samplers._sampler.cache_clear()
    yield samplers.SAMPLERS
    samplers._sampler.cache_clear()


def test_the_examples_run(table):
    """A strategy and its test, an allocator, an engine and a sampler: all but the first block assert something."""
    assert [block.count("\nassert ") for block in BLOCKS] == [0, 1, 1, 1, 1]
    known = set(table)
    space: dict = {}
    for block in BLOCKS:
        exec(block, space)
    assert set(table) - known == {space["dist"].Gompertz}


def test_the_files_that_the_text_names_exist():
    added = {"likelihood_weighting", "neyman", "prior"}
    for name in re.findall(r"`(src/anabranch/[\w/]+(?:\.py|/))`", TEXT):
        assert Path(name).stem in added or (ROOT / name).exists(), name
    for name in re.findall(r"^\| `(\w+/)`", TEXT, flags=re.MULTILINE):
        assert (ROOT / "src/anabranch" / name).is_dir(), name
