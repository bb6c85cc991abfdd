"""A strategy for some paths, and another for the rest."""

import pickle

import numpy as np
import pytest

import anabranch as ab
import solved
from anabranch import errors
from anabranch.conquer import SMC, Auto, ModeMixture, PathTarget, PerPath, solve


def methods(strategy, **settings):
    posterior = ab.infer(solved.choice, solved.Y, engine=ab.DCC(strategy=strategy), budget=30_000, **settings)
    assert abs(posterior.log_evidence - solved.log_evidence()) < 4 * posterior.log_evidence_sd < 0.4
    return posterior, dict(zip(posterior.paths.path, posterior.paths.method, strict=True))


def test_a_path_has_the_strategy_of_its_description():
    posterior, found = methods({"model = 2": SMC()})
    assert found["model = 2"] == "SMC"
    assert found["model = 1"] != "SMC"
    assert not any("which was not found" in each for each in posterior.warnings)


def test_a_function_of_the_path_chooses_and_none_leaves_it_to_the_default():
    _, found = methods(lambda path: SMC() if path.dim == 1 else None)
    assert found["model = 1"] == "SMC"
    assert found["model = 2"] != "SMC"
    _, found = methods(PerPath({"model = 2": ModeMixture()}, otherwise=SMC()))
    assert (found["model = 1"], found["model = 2"]) == ("SMC", "ModeMixture")


def test_a_description_that_no_path_has_is_a_warning():
    posterior, _ = methods({"model = 7": SMC()})
    assert any("strategy names the path (model = 7), which was not found" in each for each in posterior.warnings)


def test_it_is_a_strategy_whose_state_pickles_and_goes_on():
    path = next(path for path in solved.divided() if path.dim == 1)
    target, strategy = PathTarget(path), PerPath({path.description: SMC()})
    alone = solve(SMC(), PathTarget(path), 3_000, seed=1)
    assert solve(strategy, target, 3_000, seed=1).log_evidence == alone.log_evidence
    rng = np.random.default_rng(0)
    state = pickle.loads(pickle.dumps(strategy.advance(target, strategy.start(target, rng), rng, 1_000)))
    assert strategy.estimate(target, strategy.advance(target, state, rng, 1_000)).method == "SMC"


def test_wrong_strategies_are_refused():
    with pytest.raises(errors.BadSetting, match=r"choice\['K = 5'\], a strategy, must be an object with start"):
        ab.DCC(strategy={"K = 5": 3})
    with pytest.raises(errors.BadSetting, match="strategy must be an object with start"):
        ab.DCC(strategy=SMC)
    with pytest.raises(errors.BadSetting, match="choice must be a strategy for each of some paths"):
        PerPath(5)
    assert ab.DCC().strategy == Auto()
    with pytest.raises(errors.BadSetting, match="the strategy of a path must be an object"):
        PerPath(lambda path: 3).start(PathTarget(solved.divided().paths[0]), np.random.default_rng(0))
