"""The parts of a density at values: the same on the host, compiled, and as the density of the path has them."""

from __future__ import annotations

import pytest

import anabranch as ab
from anabranch.divide.scores import _STEPS, Scorer
from exact import named

NAMES = ["coin", "figure_two", "barrier", "survival", "hmm_variables", "change_point", "categories", "wide_regression"]


@pytest.mark.parametrize("name", NAMES)
def test_compiled_and_on_the_host(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = named(name)
    division = ab.find_paths(case.program, *case.args, executions=50)
    for executions in division.explore(40, seed=3):
        if executions.path is None:
            continue
        host, values = executions.scores(), executions.values()
        scorer = executions.recording.once(Scorer)
        with monkeypatch.context() as context:
            context.setattr("anabranch.divide.scores._STEPS", 0)
            log_probs, log_likelihood = scorer(values, len(executions.members))
        assert ("_compiled" in vars(scorer)) == bool(executions.recording.free)
        assert log_likelihood == pytest.approx(host.log_likelihood, rel=1e-10)
        for (_, by_numpy), column in zip(host.sites.values(), log_probs.T, strict=True):
            assert column == pytest.approx(by_numpy, rel=1e-10)
        points = executions.path.coordinates(values)
        density = executions.path.evaluate(points, compile=False)
        prior = sum(by_numpy for _, by_numpy in host.sites.values())
        assert density.log_prior - density.log_jacobian == pytest.approx(prior, rel=1e-9, abs=1e-9)
        assert density.log_likelihood == pytest.approx(host.log_likelihood, rel=1e-9, abs=1e-9)


def test_it_is_compiled_after_so_many_steps() -> None:
    case = named("figure_two")
    division = ab.find_paths(case.program, *case.args, executions=50)
    [one, *_] = division.explore(10, seed=1)
    scorer = Scorer(one.recording)
    while not scorer.steps > _STEPS:
        assert "_compiled" not in vars(scorer)
        scorer(one.values(), len(one.members))
    assert "_compiled" in vars(scorer)
    assert scorer.steps < _STEPS + len(scorer._evaluator.steps) + 1
