"""The README's code runs, and what its comments say comes out."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture(scope="module")
def space():
    """The names that the first block defines."""
    names: dict = {}
    exec(BLOCKS[0], names)
    return names


def test_the_first_program(space):
    division, path = space["division"], space["path"]
    assert f"# {repr(division).partition(',')[0]}, 100 % of the prior mass found" in BLOCKS[0]
    assert f"# {path.description!r}, {path.dim}" in BLOCKS[0]
    stated = float(re.search(r"prior_probability +# ([\d.]+)", BLOCKS[0]).group(1))
    assert path.prior_probability == pytest.approx(stated, abs=5e-5)
    assert space["gradient"].shape == (1000, path.dim)
    check_posterior(space["posterior"])


def check_posterior(posterior):
    stated = float(re.search(r"log_evidence_sd +# (-[\d.]+), with an error below 0.005", BLOCKS[0]).group(1))
    assert posterior.log_evidence == pytest.approx(stated, abs=0.005 + 3 * posterior.log_evidence_sd)
    assert posterior.log_evidence_sd < 0.005
    [values] = re.findall(r'probability\("K"\) +# \{(.*?), \.\.\.\}', BLOCKS[0])
    found = posterior.probability("K")
    for K, probability in re.findall(r"(\d): ([\d.]+)", values):
        assert found[int(K)] == pytest.approx(float(probability), rel=0.1, abs=0.005)
    mean, error = re.search(r'draw\["mu0"\]\) +# ([\d.]+) with an error of ([\d.]+)', BLOCKS[0]).groups()
    ours = posterior.expectation(lambda draw: draw["mu0"])
    assert ours[0] == pytest.approx(float(mean), abs=4 * float(error))
    assert ours[1] == pytest.approx(float(error), rel=0.5)


def test_unnamed_sites_need_no_f_strings(space):
    exec(BLOCKS[1], space)
    division = space["ab"].find_paths(lambda: space["expression"](0), executions=200)
    assert len(division) > 5
    assert all(len(set(path.addresses)) == len(path.addresses) for path in division)
