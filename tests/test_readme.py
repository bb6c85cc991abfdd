"""The README's code runs, and what its comments say comes out."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_first_program():
    space: dict = {}
    exec(BLOCKS[0], space)
    division, path = space["division"], space["path"]
    assert repr(division) in BLOCKS[0]
    assert f"# {path.description!r}, {path.dim}" in BLOCKS[0]
    stated = float(re.search(r"prior_probability +# ([\d.]+)", BLOCKS[0]).group(1))
    assert path.prior_probability == pytest.approx(stated, abs=5e-5)
    assert space["gradient"].shape == (1000, path.dim)


def test_unnamed_sites_need_no_f_strings():
    space: dict = {}
    exec(BLOCKS[0] + BLOCKS[1], space)
    division = space["ab"].find_paths(lambda: space["expression"](0), executions=200)
    assert len(division) > 5
    assert all(len(set(path.addresses)) == len(path.addresses) for path in division)
