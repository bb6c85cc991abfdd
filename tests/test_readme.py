"""The README's code runs, and what its comments say comes out."""

import re
from pathlib import Path

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import halfnorm

README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture(scope="module")
def space():
    """The names that the second block defines."""
    names: dict = {}
    exec(BLOCKS[1], names)
    return names


def test_the_code_on_top(tmp_path, monkeypatch):
    """The probabilities are those of linear models with standard normal coefficients and noise on a grid."""
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(BLOCKS[0], names)
    stated = re.search(r'probability\("degree"\) +# \{(.*?)\}', BLOCKS[0]).group(1)
    found = names["posterior"].probability("degree")
    for degree, probability in re.findall(r"(\d): ([\d.]+)", stated):
        exact = exact_probability(names["height"], names["distance"], int(degree))
        assert exact == pytest.approx(float(probability), abs=0.005)
        assert abs(found[int(degree)] - exact) < 4 * found.errors[int(degree)] < 0.1
    assert (tmp_path / "trajectory.png").stat().st_size > 10_000


def exact_probability(height, distance, degree):
    noises = np.exp(np.linspace(-3.0, 5.0, 801))
    log_evidence = []
    for k in range(1, 5):
        columns = 300 * (height / 500 - 1)[:, None] ** np.arange(k + 1)
        values, vectors = np.linalg.eigh(columns @ columns.T)
        total = np.maximum(values, 0.0) + noises[:, None] ** 2
        given_noise = -0.5 * (np.log(2 * np.pi * total) + (vectors.T @ distance) ** 2 / total).sum(axis=1)
        log_evidence.append(logsumexp(given_noise + halfnorm(scale=20).logpdf(noises) + np.log(noises)))
    return np.exp(log_evidence[degree - 1] - logsumexp(log_evidence))


def test_the_first_program(space):
    division, path = space["division"], space["path"]
    assert f"# {repr(division).partition(',')[0]}, 100 % of the prior mass found" in BLOCKS[1]
    assert f"# {path.description!r}, {path.dim}" in BLOCKS[1]
    stated = float(re.search(r"prior_probability +# ([\d.]+)", BLOCKS[1]).group(1))
    assert path.prior_probability == pytest.approx(stated, abs=5e-5)
    assert space["gradient"].shape == (1000, path.dim)
    check_posterior(space["posterior"])


def check_posterior(posterior):
    stated = float(re.search(r"log_evidence_sd +# (-[\d.]+), with an error below 0.005", BLOCKS[1]).group(1))
    assert posterior.log_evidence == pytest.approx(stated, abs=0.005 + 3 * posterior.log_evidence_sd)
    assert posterior.log_evidence_sd < 0.005
    [values] = re.findall(r'probability\("K"\) +# \{(.*?), \.\.\.\}', BLOCKS[1])
    found = posterior.probability("K")
    for K, probability in re.findall(r"(\d): ([\d.]+)", values):
        assert found[int(K)] == pytest.approx(float(probability), rel=0.1, abs=0.005)
    mean, error = re.search(r'draw\["mu0"\]\) +# ([\d.]+) with an error of ([\d.]+)', BLOCKS[1]).groups()
    ours = posterior.expectation(lambda draw: draw["mu0"])
    assert ours[0] == pytest.approx(float(mean), abs=4 * float(error))
    assert ours[1] == pytest.approx(float(error), rel=0.5)


def test_unnamed_sites_need_no_f_strings(space):
    exec(BLOCKS[2], space)
    division = space["ab"].find_paths(lambda: space["expression"](0), executions=200)
    assert len(division) > 5
    assert all(len(set(path.addresses)) == len(path.addresses) for path in division)
