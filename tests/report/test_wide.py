"""What a posterior of many paths shows: the probabilities of decisions with errors, and rows that can be told apart."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
import solved
import wide
from anabranch.combine import Posterior, Solution
from anabranch.combine.blocks import blocks_of
from anabranch.combine.evidence import Evidence
from anabranch.conquer.estimate import Estimate
from anabranch.report.labels import labels_of


@pytest.fixture(scope="module")
def posterior():
    return wide.posterior()


def of(frame, name, value):
    [row] = frame[(frame.name == name) & (frame.value == value)].itertuples()
    return row.probability, row.probability_sd


def test_probabilities_of_decisions_are_those_of_the_enumeration(posterior):
    frame = posterior.decisions
    for i, exact in enumerate(wide.inclusion(posterior)):
        probability, sd = of(frame, f"z{i}", 1)
        assert probability == pytest.approx(exact, rel=1e-9)
        assert probability == pytest.approx(posterior.probability(f"z{i}")[1], rel=1e-12)
        assert sd == 0
    for value, probability in posterior.probability("count").items():
        assert of(frame, "count", value)[0] == pytest.approx(probability, rel=1e-12)
    assert list(dict.fromkeys(frame.name)) == [*(f"z{i}" for i in range(7)), "count"]


def test_errors_of_decisions_are_those_of_repeated_estimates(posterior):
    """The spread of eighty estimates is known to eight per cent, and the error is stated to first order."""
    rng = np.random.default_rng(3)
    noisy = wide.perturbed(posterior, 0.2, rng)
    estimates = []
    for _ in range(80):
        frame = wide.perturbed(posterior, 0.2, rng).decisions
        estimates.append([of(frame, "z1", 1)[0], of(frame, "z4", 0)[0], of(frame, "count", 2)[0]])
    spread = np.std(estimates, axis=0)
    frame = noisy.decisions
    stated = np.array([of(frame, *each)[1] for each in [("z1", 1), ("z4", 0), ("count", 2)]])
    np.testing.assert_allclose(stated, spread, rtol=0.35)
    assert of(frame, "z1", 1)[1] == pytest.approx(of(frame, "z1", 0)[1])  # one error for both sides


def test_errors_by_blocks_of_whole_executions():
    """Independent draws of whole executions: the error of a share is that of a binomial one."""
    division = solved.divided()
    counts = np.array([50, 30, 20])
    order = np.random.default_rng(0).permutation(100)
    solutions, start = [], 0
    for path, n in zip(sorted(division.paths, key=lambda path: path.dim), counts, strict=True):
        estimate = Estimate.from_draws(np.zeros((n, path.dim)), np.zeros(n), -1.0, 0.1, n, "Draws")
        estimate = Estimate(**{**vars(estimate), "blocks": order[start : start + n]})
        solutions.append(Solution(path, estimate, 1))
        start += n
    weights = counts / 100
    made = Posterior(division.program, solutions, solved.run(), Evidence(None, None, weights, np.zeros(3)))
    assert blocks_of(made.solutions).count == 100
    frame = made.decisions
    for value, share in enumerate(weights):
        assert of(frame, "model", value) == pytest.approx((share, np.sqrt(share * (1 - share) / 99)))


def test_a_decision_that_some_paths_lack_has_the_value_none():
    def program():
        if ab.sample("any", dist.Bernoulli(0.25)):
            extra = ab.sample("extra", dist.Categorical(np.array([0.5, 0.5])))
            ab.deterministic("K", extra + jnp.asarray(1))
            ab.deterministic("mean", sum(ab.sample(f"x{i}", dist.Normal(0.0, 1.0)) for i in range(extra)))
        ab.deterministic("always", 2.5)

    frame = ab.infer(program, budget=5000).decisions
    found = {(row.name, row.value): row.probability for row in frame.itertuples()}
    expected = {
        ("any", 0): 0.75, ("any", 1): 0.25, ("extra", None): 0.75, ("extra", 0): 0.125, ("extra", 1): 0.125,
        ("K", None): 0.75, ("K", 1): 0.125, ("K", 2): 0.125, ("always", 2.5): 1.0,
    }  # fmt: skip
    assert found == pytest.approx(expected)  # not mean, which varies on one of the paths


def test_what_varies_is_no_decision():
    frame = solved.posterior(solved.divided()).decisions
    assert set(frame.name) == {"model", "twice"}  # mean is constant on one of three paths


def test_a_wide_program_is_shown_by_its_decisions(posterior, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = repr(posterior)
    _, decisions, paths, _ = text.split("\n\n")
    assert decisions.startswith("Decisions:\nz0 = 1  ")
    assert f"z1 = 1  {of(posterior.decisions, 'z1', 1)[0]:.4g} ± 0" in decisions
    assert len(paths.splitlines()) == 8  # header, five paths, the others, what they share
    assert "more paths, with a total weight of" in paths
    assert '<th style="text-align:left">decision</th>' in posterior._repr_html_()


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_the_text_fits_the_terminal(posterior, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    for each in (posterior, solved.posterior(solved.divided())):
        assert max(map(len, repr(each).splitlines())) <= max(columns, 60)


def test_rows_can_be_told_apart(posterior):
    paths = [solution.path for solution in posterior.solutions[:10]]
    labels, common = labels_of(paths)
    assert len(set(labels)) == 10
    shared = set.intersection(*(set(path.decisions[0]) for path in paths))
    assert common.split(", ") == [text for text in paths[0].decisions[0] if text in shared]
    assert not any(text in label for label in labels for text in shared)
    assert labels_of(paths[:1]) == ([paths[0].description], "")


class Walk:
    """A path in name only, that asks one question again and again."""

    def __init__(self, steps):
        self.decisions = (("x > 0 (walk.py:3)",) * steps + ("x <= 0 (walk.py:3)",),)


def test_loops_are_told_apart_by_their_length():
    assert labels_of([Walk(1), Walk(3)]) == (["x > 0 (walk.py:3)", "x > 0 (walk.py:3) ×3"], "x <= 0 (walk.py:3)")


def test_light_paths_are_one_line(posterior):
    heavy, *others = posterior.solutions
    light = [
        Solution(
            each.path, Estimate.from_draws(np.zeros((1, 0)), np.zeros(1), heavy.log_evidence - 50 - k, 0.0, 1, "x")
        )
        for k, each in enumerate(others[:38])
    ]
    text = repr(Posterior(posterior.program, [heavy, *light], posterior.run))
    assert "and 38 more paths, with less than 1e-06 together" in text
    assert "e-23" not in text
    assert "Decisions" not in text  # one path with mass is not many
