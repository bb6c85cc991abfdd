"""What engines refuse, and what must not break them."""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.special import gamma
from scipy.stats import multivariate_normal, norm, poisson

import anabranch as ab
from anabranch import engines, errors
from anabranch.engines.sampler import Session
from engine_cases import CASES
from exact import named
from helpers import use_false_clock

STAY = engines.Move(lambda trace: None, lambda trace, aux: (trace, aux), name="stay")
"""A move that changes nothing: what InvolutiveMH does beside it is all that it does."""
ALL: dict[str, Any] = {
    "ImportanceSampling": engines.ImportanceSampling(batch=1_000),
    "Rejection": engines.Rejection(log_bound=0.0, batch=1_000),
    "SMC": engines.SMC(particles=50),
    "SMC, resample-move": engines.SMC(particles=50, threshold=1.0, rejuvenation=1),
    "SMC2": engines.SMC2(particles=5, thetas=10),
    "ParticleGibbs": engines.ParticleGibbs(particles=5, chains=20),
    "ParticleGibbs, ancestors": engines.ParticleGibbs(particles=5, chains=20, ancestor_sampling=True),
    "PIMH": engines.PIMH(particles=5, chains=20),
    "PMMH": engines.PMMH(particles=5, chains=10),
    "IPMCMC": engines.IPMCMC(particles=5, chains=5, nodes=4, conditional=2),
    "LightweightMH": engines.LightweightMH(chains=50),
    "RandomWalkMH": engines.RandomWalkMH(chains=50),
    "RandomWalkMH, centred": engines.RandomWalkMH(chains=50, importance_samples=0.5),
    "BBVI": engines.BBVI(batch=50),
    "InvolutiveMH": engines.InvolutiveMH(STAY, chains=50),
}
"""With so many chains that the budgets below are few steps of each, which take the longest."""
WITHOUT_EVIDENCE = (
    "ParticleGibbs",
    "ParticleGibbs, ancestors",
    "PMMH",
    "LightweightMH",
    "RandomWalkMH",
    "InvolutiveMH",
)
BY_OBSERVATIONS = ("SMC", "SMC, resample-move", "SMC2", "ParticleGibbs", "PIMH", "PMMH", "IPMCMC")


def coin(heads: int) -> None:
    fair = ab.sample("fair", dist.Bernoulli(0.5))
    p = 0.5 if fair else ab.sample("p", dist.Beta(1.0, 1.0))
    ab.observe("heads", dist.Binomial(10, p), heads)


@cache
def on_the_coin(name: str) -> ab.Posterior:
    """A run that several tests look at."""
    return ab.infer(coin, 7, engine=ALL[name], budget=3_000, seed=5, workers=1, tolerance=None)


def positives() -> None:
    """Its branches give 256 decision sequences with the same sites, and are run as selects after some of them."""
    count = 0.0
    for i in range(8):
        if ab.sample(f"x{i}", dist.Normal(0.0, 1.0)) > 0:
            count = count + 1.0
    ab.observe("y", dist.Normal(count, 1.0), 6.0)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", ALL)
class TestEvery:
    def test_same_seed_gives_the_same_answer(self, name: str) -> None:
        one = on_the_coin(name)
        two, other = (
            ab.infer(coin, 7, engine=ALL[name], budget=3_000, seed=seed, workers=3, tolerance=None) for seed in (5, 6)
        )
        assert one.log_evidence == two.log_evidence
        assert one.evidence.weights.tolist() == two.evidence.weights.tolist()
        for mine, theirs in zip(one.solutions, two.solutions, strict=True):
            assert np.array_equal(mine.points, theirs.points)
        assert one.evidence.weights.tolist() != other.evidence.weights.tolist()

    def test_budget_is_kept(self, name: str) -> None:
        posterior = on_the_coin(name)
        assert 2_900 <= posterior.run.evaluations <= 3_000
        assert "budget of 3,000 evaluations" in posterior.run.stopped

    def test_time_is_kept(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        # After fewer looks at the clock PMMH has been on one path alone.
        use_false_clock(monkeypatch, step=0.00005 if name == "PMMH" else 0.0001)
        posterior = ab.infer(coin, 7, engine=ALL[name], budget=10**9, seconds=0.3, tolerance=None)
        assert "0.3 seconds" in posterior.run.stopped
        assert posterior.probability("fair").keys() == {0, 1}

    def test_evidence_is_given_or_known_not_to_be(self, name: str) -> None:
        posterior = on_the_coin(name)
        if name in WITHOUT_EVIDENCE:
            assert posterior.log_evidence is None
            assert f"not given by {name.split(',')[0]}" in repr(posterior)
        else:
            truth = np.log(0.5 / 11 + 0.5 * 120 / 1024)
            assert abs(posterior.log_evidence - truth) < 4 * posterior.log_evidence_sd < 0.4
        assert sum(posterior.probability("fair").values()) == pytest.approx(1)
        assert len(posterior.draws(10)) == 10

    def test_python_that_leaves_jax_runs_too(self, name: str) -> None:
        def program() -> None:
            x = ab.sample("x", dist.Normal(0.0, 1.0))
            level = math.floor(abs(float(x)))
            y = ab.sample("y", dist.Normal(level, 1.0))
            ab.observe("z", dist.Normal(y, 1.0), 1.0)

        # Given the level l, y and z are normal: z has mean l and variance 2, and y lies halfway between l and z.
        levels = np.arange(10)
        weights = (norm.cdf(levels + 1) - norm.cdf(levels)) * np.exp(-((1 - levels) ** 2) / 4)
        truth = weights @ ((levels + 1) / 2) / weights.sum()
        posterior = ab.infer(program, engine=ALL[name], budget=300)
        mean, sd = posterior.expectation(lambda draw: draw["y"], max_draws=100)
        assert abs(mean - truth) < 4 * sd < 1.5

    def test_vectors_whose_length_differs(self, name: str) -> None:
        def program() -> None:
            n = ab.sample("n", dist.Categorical(jnp.array([0.3, 0.3, 0.4]))) + 1
            x = ab.sample("x", dist.Normal(0.0, 1.0).expand([int(n)]).to_event(1))
            ab.observe("y", dist.Normal(jnp.sum(x), 1.0), 2.0)
            ab.observe("z", dist.Normal(x[0], 1.0), 1.0)

        posterior = ab.infer(program, engine=ALL[name], budget=6_000)
        log_parts = []
        for n, p in ((1, 0.3), (2, 0.3), (3, 0.4)):
            covariance = np.array([[n + 1.0, 1.0], [1.0, 2.0]])
            log_parts.append(np.log(p) - 0.5 * np.linalg.slogdet(covariance)[1]
                             - 0.5 * np.array([2.0, 1.0]) @ np.linalg.solve(covariance, [2.0, 1.0]))  # fmt: skip
        truth = np.exp(log_parts) / np.exp(log_parts).sum()
        for n in range(3):
            mean, sd = posterior.expectation(lambda draw, n=n: float(draw["n"] == n))
            assert abs(mean - truth[n]) < 4 * sd < 0.6

    def test_a_branch_on_many_reals_changes_the_form_of_the_program(self, name: str) -> None:
        posterior = ab.infer(positives, engine=ALL[name], budget=2_000)
        mean, sd = posterior.expectation(lambda draw: float(draw["x0"] > 0), max_draws=500)
        weights = np.array([math.comb(8, k) * np.exp(-0.5 * (6 - k) ** 2) for k in range(9)])
        assert abs(mean - weights @ np.arange(9) / 8 / weights.sum()) < 4 * sd < 0.8

    def test_impossible_data_are_no_crash(self, name: str) -> None:
        def program() -> None:
            ab.sample("x", dist.Normal(0.0, 1.0))
            ab.factor("never", -jnp.inf)

        if name in ("ImportanceSampling", "Rejection", "SMC", "SMC, resample-move", "SMC2", "BBVI"):
            posterior = ab.infer(program, engine=ALL[name], budget=1_000)
            assert posterior.log_evidence == -np.inf
            with pytest.raises(errors.NoDraws):
                posterior.draws(1)
        else:
            with pytest.raises(errors.EngineCannotRun, match="have produced the data"):
                ab.infer(program, engine=ALL[name], budget=1_000)

    def test_nan_counts_as_impossible(self, name: str) -> None:
        def program() -> None:
            x = ab.sample("x", dist.Normal(0.0, 1.0))
            ab.factor("root", jnp.log(jnp.sqrt(x)) - 1.0)  # NaN for half of the executions

        posterior = ab.infer(program, engine=ALL[name], budget=4_000)
        share, _ = posterior.expectation(lambda draw: float(draw["x"] > 0))
        assert share == pytest.approx(1.0)
        mean, sd = posterior.expectation(lambda draw: draw["x"])
        assert abs(mean - np.sqrt(2) * gamma(5 / 4) / gamma(3 / 4)) < 4 * sd < 0.7
        if name not in WITHOUT_EVIDENCE:
            truth = np.log(2 ** (-1 / 4) * gamma(3 / 4) / np.sqrt(2 * np.pi)) - 1
            assert abs(posterior.log_evidence - truth) < 4 * posterior.log_evidence_sd < 0.3

    def test_improper_prior_is_refused(self, name: str) -> None:
        def program() -> None:
            x = ab.sample("x", dist.ImproperUniform(dist.constraints.real, (), ()))
            ab.observe("y", dist.Normal(x, 1.0), 1.0)

        with pytest.raises(errors.EngineCannotRun, match=r"'x'.*draw from the prior.*proper prior"):
            ab.infer(program, engine=ALL[name])

    def test_answers_survive_saving(self, name: str, tmp_path: Any) -> None:
        posterior = on_the_coin(name)
        posterior.save(tmp_path / "run")
        again = ab.load(tmp_path / "run")
        assert again.log_evidence == posterior.log_evidence
        assert again.probability("fair") == posterior.probability("fair")


@pytest.mark.parametrize("name", BY_OBSERVATIONS)
def test_a_filter_needs_observations(name: str) -> None:
    def program() -> None:
        ab.sample("x", dist.Normal(0.0, 1.0))

    with pytest.raises(errors.EngineCannotRun, match=r"program has none.*ImportanceSampling"):
        ab.infer(program, engine=ALL[name])


def test_rejection_needs_a_bound_and_checks_it() -> None:
    case = next(case for case in CASES if case.name == "normal_mean")
    with pytest.raises(errors.EngineCannotRun, match=r"'y0' .*needs a bound.*log_bound"):
        ab.infer(case.program, *case.args, engine=engines.Rejection())
    with pytest.raises(errors.EngineCannotRun, match=r"log likelihood of .* above the bound of -20"):
        ab.infer(case.program, *case.args, engine=engines.Rejection(log_bound=-20.0))


def test_discrete_observations_need_no_bound() -> None:
    case = named("coin")
    posterior = ab.infer(case.program, *case.args, engine=engines.Rejection(), budget=50_000)
    assert abs(posterior.log_evidence - case.log_evidence) < 4 * posterior.log_evidence_sd < 0.2


CERTAIN = {
    "independent": lambda sums: dist.Delta(sums).to_event(1),
    "event_dim": lambda sums: dist.Delta(sums, event_dim=1),
    "expanded": lambda sums: dist.Delta(sums).to_event(1).expand((1,)),
    "masked": lambda sums: dist.Delta(sums).to_event(1).mask(np.array(True)),
}


@pytest.mark.parametrize("certain", CERTAIN.values(), ids=CERTAIN)
def test_a_hard_condition_on_a_vector_needs_no_bound(certain: Any) -> None:
    chances = np.array([0.1, 0.2, 0.3, 0.4])

    def program(sums: np.ndarray) -> None:
        dice = ab.sample("dice", dist.Categorical(chances).expand([3]).to_event(1))
        ab.observe("sums", certain(dice[:2] + dice[1:]), sums)

    exact = {
        dice: float(np.prod(chances[list(dice)]))
        for dice in itertools.product(range(4), repeat=3)
        if (dice[0] + dice[1], dice[1] + dice[2]) == (3, 4)
    }
    posterior = ab.infer(program, np.array([3, 4]), engine=engines.Rejection(), budget=20_000, tolerance=None)
    evidence = sum(exact.values())
    assert abs(posterior.log_evidence - np.log(evidence)) < 4 * posterior.log_evidence_sd < 0.4
    for dice, probability in exact.items():
        mean, sd = posterior.expectation(lambda draw, dice=dice: float(tuple(draw["dice"]) == dice))
        assert abs(mean - probability / evidence) < 4 * sd < 0.2


def test_a_certain_value_with_a_density_of_its_own_breaks_the_bound() -> None:
    def program() -> None:
        dice = ab.sample("dice", dist.DiscreteUniform(1, 6).expand([2]).to_event(1))
        ab.observe("seen", dist.Delta(dice, log_density=jnp.array([0.0, 0.5])).to_event(1), np.array([3, 4]))

    with pytest.raises(errors.EngineCannotRun, match=r"log likelihood of 0.5, above the bound of 0"):
        ab.infer(program, engine=engines.Rejection())


def test_a_guide_halves_the_error() -> None:
    def guide(heads: int) -> None:
        if not ab.sample("fair", dist.Bernoulli(0.3)):
            ab.sample("p", dist.Beta(1.0 + heads, 11.0 - heads))

    truth = np.log(0.5 / 11 + 0.5 * 10 / 1024)
    blind = ab.infer(coin, 9, engine=engines.ImportanceSampling(), budget=10_000, tolerance=None)
    led = ab.infer(coin, 9, engine=engines.ImportanceSampling(guide=guide), budget=10_000, tolerance=None)
    for posterior in (blind, led):
        assert abs(posterior.log_evidence - truth) < 4 * posterior.log_evidence_sd < 0.1
    assert led.log_evidence_sd < blind.log_evidence_sd / 2


def test_what_a_guide_leaves_out_comes_from_the_prior() -> None:
    def guide(heads: int) -> None:
        ab.sample("fair", dist.Bernoulli(0.1))

    posterior = ab.infer(coin, 9, engine=engines.ImportanceSampling(guide=guide), budget=20_000)
    truth = np.log(0.5 / 11 + 0.5 * 10 / 1024)
    assert abs(posterior.log_evidence - truth) < 4 * posterior.log_evidence_sd < 0.1


def test_a_guide_must_not_draw_what_the_program_does_not_have() -> None:
    def guide(heads: int) -> None:
        ab.sample("fair", dist.Bernoulli(0.5))
        ab.sample("p", dist.Beta(1.0, 1.0))

    with pytest.raises(errors.EngineCannotRun, match=r"the guide draws 'p' .*fair = 1"):
        ab.infer(coin, 9, engine=engines.ImportanceSampling(guide=guide))


def test_parameters_must_not_depend_on_the_rest() -> None:
    def program(y: np.ndarray) -> None:
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        scale = ab.sample("scale", dist.LogNormal(x, 1.0))
        ab.observe("y", dist.Normal(x, scale), y)

    with pytest.raises(errors.EngineCannotRun, match=r"'scale'.*depends on sites that are not parameters"):
        ab.infer(program, 0.3, engine=engines.PMMH(parameters=["scale"]), budget=10_000)
    with pytest.raises(errors.EngineCannotRun, match=r"'sclae', which is no site of program.*scale"):
        ab.infer(program, 0.3, engine=engines.PMMH(parameters=["sclae"]))


def test_executions_beyond_the_bound_are_told() -> None:
    def program() -> None:
        n = 0
        while ab.sample(f"again{n}", dist.Bernoulli(0.7)):
            n += 1
        ab.observe("y", dist.Poisson(1.0 + n), 2)

    posterior = ab.infer(program, engine=engines.ImportanceSampling(), budget=2_000, max_sites=5)
    assert any("more sites than max_sites" in warning for warning in posterior.warnings)


def test_ancestors_among_executions_beyond_the_bound() -> None:
    def program() -> None:
        n = 0
        while ab.sample(f"again{n}", dist.Bernoulli(0.6)):
            ab.observe(f"y{n}", dist.Normal(ab.sample(f"x{n}", dist.Normal(0.0, 1.0)), 1.0), 0.5)
            n += 1
        for k in range(6):
            ab.observe(f"z{k}", dist.Normal(float(n), 1.0), 1.0)

    engine = engines.ParticleGibbs(particles=5, chains=10, threshold=1.0, ancestor_sampling=True)
    posterior = ab.infer(program, engine=engine, budget=3_000, max_sites=6)
    assert len(posterior.draws(5)) == 5


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: engines.SMC(particles=0), "particles must be a whole number, at least 1"),
        (lambda: engines.SMC(resampling="best"), "resampling must be one of"),
        (lambda: engines.SMC(rejuvenation=-1), "rejuvenation must be a whole number, at least 0"),
        (lambda: engines.SMC2(thetas=0), "thetas must be a whole number, at least 1"),
        (lambda: engines.SMC(threshold=2.0), "threshold must be a share"),
        (lambda: engines.ParticleGibbs(particles=1), "particles must be a whole number, at least 2"),
        (lambda: engines.PIMH(chains=0), "chains must be a whole number, at least 1"),
        (
            lambda: engines.IPMCMC(nodes=4, conditional=4),
            "conditional must be a whole number, at least 1 and below nodes, which is 4",
        ),
        (lambda: engines.LightweightMH(warmup=1.0), "warmup must be a share"),
        (lambda: engines.RandomWalkMH(local_share=-1.0), "local_share must be a share"),
        (lambda: engines.RandomWalkMH(importance_samples=1.0), "importance_samples must be a share"),
        (lambda: engines.ImportanceSampling(batch=0), "batch must be a whole number, at least 1"),
        (lambda: engines.Rejection(log_bound=math.inf), "log_bound must be a finite number"),
        (lambda: engines.PMMH(parameters="x"), "parameters must be a list of names"),
        (lambda: engines.ImportanceSampling(guide=3), "guide must be a function"),
    ],
)
def test_senseless_settings_are_refused(make: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        make()


def test_a_path_that_leaves_jax_after_an_observation_is_weighed_once() -> None:
    def program() -> None:
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        ab.observe("y0", dist.Normal(x, 1.0), 0.5)
        if ab.sample("k", dist.Bernoulli(0.5)):
            z = ab.sample("z", dist.Normal(0.0, 1.0))
            ab.observe("y1", dist.Normal(float(z), 1.0), 2.0)
        else:
            ab.observe("y1", dist.Normal(x, 1.0), 2.0)
            ab.observe("y2", dist.Normal(x, 1.0), 0.0)

    together = multivariate_normal(np.zeros(3), 1 + np.eye(3)).logpdf([0.5, 2.0, 0.0])
    apart = multivariate_normal(np.zeros(2), 2 * np.eye(2)).logpdf([0.5, 2.0])
    truth = np.logaddexp(together, apart) - np.log(2)
    posterior = ab.infer(program, engine=engines.SMC(particles=20, threshold=1.0), budget=300, tolerance=None)
    assert abs(posterior.log_evidence - truth) < 4 * posterior.log_evidence_sd < 0.8
    ab.infer(program, engine=ALL["ParticleGibbs, ancestors"], budget=100).probability("k")


@pytest.mark.parametrize("change", ["scale", "mask"])
def test_a_density_that_is_not_that_of_the_draws_is_refused(change: str) -> None:
    def program() -> None:
        handler = {"scale": numpyro.handlers.scale(scale=3.0), "mask": numpyro.handlers.mask(mask=False)}[change]
        with handler:
            x = ab.sample("x", dist.Bernoulli(0.5))
        ab.observe("y", dist.Normal(x, 1.0), 2.0)

    with pytest.raises(errors.EngineCannotRun, match=r"'x'.*mask or a scale.*DCC"):
        ab.infer(program, engine=engines.ImportanceSampling())


def of_two_kinds() -> None:
    real = ab.sample("real", dist.Bernoulli(0.5))
    x = ab.sample("x", dist.Normal(2.0, 1.0)) if real else ab.sample("x", dist.Poisson(2.0))
    ab.observe("y", dist.Normal(x * 1.0, 1.0), 2.5)


@pytest.mark.parametrize("name", ["LightweightMH", "RandomWalkMH", "PMMH", "InvolutiveMH"])
def test_values_are_not_carried_between_kinds(name: str) -> None:
    with pytest.raises(errors.EngineCannotRun, match=r"'x'.*another kind on another path.*another name"):
        ab.infer(of_two_kinds, engine=ALL[name], budget=10_000)


def test_an_engine_that_carries_no_values_has_a_site_of_two_kinds() -> None:
    counts = np.arange(60)
    real, whole = norm.pdf(2.5, 2.0, np.sqrt(2.0)), poisson.pmf(counts, 2.0) @ norm.pdf(2.5, counts, 1.0)
    posterior = ab.infer(of_two_kinds, engine=engines.IPMCMC(particles=5, chains=100), budget=200_000)
    mean, sd = posterior.expectation(lambda draw: float(draw["real"]))
    assert abs(mean - real / (real + whole)) < 4 * sd < 0.1


def test_ancestors_do_not_bring_a_site_that_is_still_to_come() -> None:
    def program() -> None:
        early = ab.sample("early", dist.Bernoulli(0.5))
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        a = ab.sample("a", dist.Normal(0.0, 1.0)) if early else None
        ab.observe("y0", dist.Normal(x, 0.5), 0.3)
        a = a if early else ab.sample("a", dist.Normal(0.0, 1.0))
        ab.observe("y1", dist.Normal(a, 0.5), 0.5)

    engine = engines.ParticleGibbs(particles=5, chains=100, threshold=1.0, ancestor_sampling=True)
    mean, sd = ab.infer(program, engine=engine, budget=100_000).expectation(lambda draw: float(draw["early"]))
    assert abs(mean - 0.5) < 4 * sd < 0.1


def test_filters_without_any_weight_count_in_the_evidence() -> None:
    def dice(total: int) -> None:
        one, two = (ab.sample(name, dist.DiscreteUniform(1, 6)) for name in ("one", "two"))
        ab.observe("total", dist.Delta(one + two), total)

    for seed in range(3):
        engine = engines.PIMH(particles=5, chains=200)
        posterior = ab.infer(dice, 11, engine=engine, budget=50_000, seed=seed)
        assert abs(posterior.log_evidence - np.log(2 / 36)) < 4 * posterior.log_evidence_sd < 0.2


def test_mass_at_the_edge_of_a_support() -> None:
    def program() -> None:
        p = ab.sample("p", dist.Beta(0.01, 0.01))
        ab.observe("y", dist.Bernoulli(p), 1)

    posterior = ab.infer(program, engine=engines.ImportanceSampling(), budget=20_000)
    assert abs(posterior.log_evidence - np.log(0.5)) < 4 * posterior.log_evidence_sd < 0.1
    chains = ab.infer(program, engine=engines.LightweightMH(), budget=5_000)
    assert any("NaN or infinite" in warning for warning in chains.warnings)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (lambda: ab.factor("f", 2.0), r"'f'.*a guide only draws"),
        (lambda: ab.sample("d", dist.Delta(1.0)), r"'d'.*a guide only draws"),
    ],
)
def test_a_guide_only_draws(extra: Any, words: str) -> None:
    def guide(heads: int) -> None:
        ab.sample("fair", dist.Bernoulli(0.5))
        extra()

    with pytest.raises(errors.EngineCannotRun, match=words):
        ab.infer(coin, 9, engine=engines.ImportanceSampling(guide=guide))


def test_a_guide_draws_what_the_program_draws() -> None:
    def program() -> None:
        ab.observe("y", dist.Normal(ab.sample("x", dist.Normal(0.0, 1.0)), 1.0), 1.0)

    def guide() -> None:
        ab.sample("x", dist.Poisson(1.0))

    with pytest.raises(errors.EngineCannotRun, match="'x' is discrete in the program or in the guide, and not in"):
        ab.infer(program, engine=engines.ImportanceSampling(guide=guide))


@pytest.mark.parametrize("name", ["ParticleGibbs", "PIMH", "PMMH", "IPMCMC"])
def test_a_budget_below_one_round_still_answers(name: str) -> None:
    posterior = ab.infer(coin, 9, engine=ALL[name], budget=10)
    assert sum(posterior.probability("fair").values()) == pytest.approx(1)
    assert posterior.run.evaluations <= 10


# What a run says of itself --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [engines.LightweightMH(chains=20), engines.PIMH(particles=5, chains=10)])
def test_an_interrupted_chain_knows_how_well_it_mixed(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = Session.goes_on

    def interrupted(session: Session, needs: int = 1) -> bool:
        if session.progressed > 0.8:
            raise KeyboardInterrupt
        return goes_on(session, needs)

    monkeypatch.setattr(Session, "goes_on", interrupted)
    posterior = ab.infer(coin, 7, engine=engine, budget=10_000)
    assert "interrupted" in posterior.run.stopped
    for solution in posterior.solutions:
        assert np.isfinite(solution.estimate.r_hat)
        assert solution.estimate.ess < len(solution.points)


def test_a_path_of_which_no_draw_is_kept_has_its_evidence() -> None:
    def program() -> None:
        near = ab.sample("near", dist.Bernoulli(0.5))
        ab.observe("y", dist.Normal(0.0 if near else 20.0, 1.0), 0.0)

    posterior = ab.infer(program, engine=engines.ImportanceSampling(), budget=5_000)
    near, far = posterior.solutions
    assert not len(far.points)
    assert abs(far.log_evidence - near.log_evidence + 200) < 0.2


def test_filters_stop_at_the_tolerance() -> None:
    posterior = ab.infer(coin, 7, engine=engines.SMC(particles=100), budget=1_000_000, tolerance=0.05)
    assert posterior.log_evidence_sd < 0.05
    assert posterior.run.evaluations < 100_000


@pytest.mark.parametrize("chains", [2, 3, 4])
def test_fewer_than_four_chains_are_spoken_of(chains: int) -> None:
    posterior = ab.infer(coin, 7, engine=engines.LightweightMH(chains=chains), budget=500)
    assert any("Run at least four" in warning for warning in posterior.warnings) == (chains < 4)


def test_samples_around_chains_that_leave_a_rest_of_the_budget_say_so() -> None:
    """A hundred centres at a time, for each path: what is left is less than that."""
    posterior = ab.infer(coin, 7, engine=ALL["RandomWalkMH, centred"], budget=3_000, tolerance=None)
    assert posterior.run.stopped == "The budget of 3,000 evaluations is shared out."
    assert 2_800 < posterior.run.evaluations < 3_000


def test_the_guide_of_a_run_draws_otherwise_than_the_program_of_the_next() -> None:
    def program() -> None:
        ab.sample("x", dist.Normal(0.0, 1.0))

    engine = engines.ImportanceSampling(guide=program)
    this = ab.infer(program, engine=engine, seed=3, budget=100)
    following = ab.infer(program, engine=engines.ImportanceSampling(), seed=4, budget=100)
    assert not np.isin(this.solutions[0].points, following.solutions[0].points).any()


def sum_of_two(y: float) -> None:
    ab.observe("y", dist.Normal(ab.sample("x", dist.Normal(0.0, 1.0)) + ab.sample("u", dist.Normal(0.0, 1.0)), 1.0), y)


def guide_with_steps(y: float) -> None:
    """Its branches give 41 decision sequences with the same sites, and are run as selects after some of them."""
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    shift = 0.0
    for i in range(40):
        shift = shift + (0.01 if x < (i - 20) / 10 else 0.0)
    ab.sample("u", dist.Normal(shift, 1.0))


def test_a_guide_that_takes_another_form_during_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draws are those of a guide that took it before."""
    engine = engines.ImportanceSampling(guide_with_steps)
    before = ab.infer(sum_of_two, 0.3, engine=engine, budget=2_000)
    monkeypatch.setattr(engines.ImportanceSampling, "executions", 1)
    during = ab.infer(sum_of_two, 0.3, engine=engine, budget=2_000)
    assert during.log_evidence == before.log_evidence
    assert abs(during.log_evidence - norm(0.0, math.sqrt(3)).logpdf(0.3)) < 4 * during.log_evidence_sd < 0.2


def test_a_fitted_guide_with_too_many_branches_is_refused() -> None:
    """It is run by the interpreter after some of them, during the run."""

    def guide(y: float) -> None:
        x = ab.sample("x", dist.Normal(numpyro.param("mean", 0.0), 1.0))
        ab.sample("u", dist.Normal(sum(0.01 for i in range(200) if x < (i - 100) / 40), 1.0))

    with pytest.raises(errors.EngineCannotRun, match="the guide is run by the interpreter"):
        ab.infer(sum_of_two, 0.3, engine=engines.SVI(guide), budget=4_000)
