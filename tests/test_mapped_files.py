"""A file mapped to memory is an argument like any array, and is not copied whole where the interpreter runs."""

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import norm

import anabranch as ab


@pytest.fixture
def mapped(tmp_path):
    values = np.random.default_rng(0).normal(0.5, 1.0, 3_000)
    values.tofile(tmp_path / "y.dat")
    return np.memmap(tmp_path / "y.dat", np.float64, "r"), values


def recorded(y):
    mu = ab.sample("mu", dist.Normal(0.0, 1.0)) if ab.sample("free", dist.Bernoulli(0.5)) else 0.0
    ab.observe("y", dist.Normal(mu, 1.0), y)


SEEN = set()


def in_blocks(y):
    """The likelihood of one block after the other: no more of the file is in memory than a block."""
    mu = float(ab.sample("mu", dist.Normal(0.0, 1.0)))
    SEEN.add(y.filename)
    blocks = (np.asarray(y[start : start + 1_000]) for start in range(0, len(y), 1_000))
    ab.factor("y", -0.5 * sum(float(((block - mu) ** 2 + np.log(2 * np.pi)).sum()) for block in blocks))


def test_the_same_answer_as_from_an_array(mapped):
    file, values = mapped
    one, other = (ab.infer(recorded, each, budget=5_000) for each in (file, values))
    assert one.log_evidence == other.log_evidence


def test_a_likelihood_in_blocks_is_exact(mapped):
    file, values = mapped
    (path,) = ab.find_paths(in_blocks, file, executions=3).paths
    points = np.linspace(0.3, 0.7, 5)[:, None]
    truth = [norm(mu, 1.0).logpdf(values).sum() for mu in points[:, 0]]
    np.testing.assert_allclose(path.evaluate(points).log_likelihood, truth, rtol=1e-12)
    assert {file.filename} == SEEN  # never a copy in memory, which has no file


def test_a_file_that_may_be_written_is_copied(mapped, tmp_path):
    file = np.memmap(tmp_path / "y.dat", np.float64, "r+")
    path = max(ab.find_paths(recorded, file, executions=20).paths, key=lambda path: path.dim)
    before = path.evaluate(np.zeros((1, 1)), compile=False).log_likelihood
    file[:] = 9.0
    assert path.evaluate(np.zeros((1, 1)), compile=False).log_likelihood == before
