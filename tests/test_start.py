"""`DCC(start=...)`: paths that the user names are found and visited, and nothing else changes."""

import logging

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import norm

import anabranch as ab
from anabranch.errors import BadSetting, CannotLoad, UnknownName
from anabranch.search import Discovery

RARE, FAR, Y = 1e-9, 20_000, 0.7
"""The prior probability of a code far from all others, the code, and the datum."""


def code(y, log_factor, rare=RARE):
    """Few codes have a probability: three common ones, and one that no search comes to."""
    probs = np.zeros(FAR + 1)
    probs[:3], probs[FAR] = (1 - rare) / 3, rare
    mean = 0.0
    if ab.sample("code", dist.Categorical(jnp.asarray(probs))) > 2:
        mean = ab.sample("mu", dist.Normal(0.0, 1.0))
        ab.factor("behind", log_factor)
    ab.observe("y", dist.Normal(mean, 1.0), y)


# With this factor, half of the evidence is behind the rare code.
LOG_FACTOR = norm.logpdf(Y) + np.log1p(-RARE) - np.log(RARE) - norm.logpdf(Y, scale=np.sqrt(2))
LOG_EVIDENCE = np.log(2) + np.log1p(-RARE) + norm.logpdf(Y)


def priors(posterior):
    return {each.path.description: each.path.log_prior_probability for each in posterior.solutions}


@pytest.mark.parametrize("seed", range(3))
def test_a_named_path_that_no_search_finds_is_in_the_evidence(seed):
    without = ab.infer(code, Y, LOG_FACTOR, seed=seed)
    assert abs(without.log_evidence - (LOG_EVIDENCE - np.log(2))) < 1e-6
    posterior = ab.infer(code, Y, LOG_FACTOR, seed=seed, engine=ab.DCC(start=[{"code": FAR}]))
    assert abs(posterior.log_evidence - LOG_EVIDENCE) < 4 * posterior.log_evidence_sd + 1e-9
    assert posterior.log_evidence_sd < 0.01
    assert abs(posterior.probability("code")[FAR] - 0.5) < 0.01
    assert posterior.run.notes == ()
    found = priors(posterior)
    assert found.pop(f"code = {FAR}") == pytest.approx(np.log(RARE))
    assert found == priors(without)


def test_a_named_path_is_visited_however_rare_it_is():
    engine = ab.DCC(start={"code": FAR, "mu": 1.0})
    posterior = ab.infer(code, Y, 0.0, 1e-200, seed=0, engine=engine)
    (named,) = [each for each in posterior.solutions if each.path.description == f"code = {FAR}"]
    assert named.visits
    truth = np.log(1e-200) + norm.logpdf(Y, scale=np.sqrt(2))
    assert abs(named.log_evidence - truth) < 4 * named.estimate.log_evidence_sd + 1e-6


def counted(y):
    """The prior probabilities of its paths are counted, and those of the values of K depend on a draw."""
    rate = ab.sample("rate", dist.Beta(2.0, 2.0))
    total = 0.0
    for i in range(ab.sample("K", dist.Binomial(2, rate))):
        total = total + ab.sample(f"x{i}", dist.Normal(0.0, 1.0))
    if ab.sample("shift", dist.Normal(0.0, 1.0)) > 1:
        total = total + ab.sample("more", dist.Normal(0.0, 1.0))
    ab.observe("y", dist.Normal(total, 1.0), y)


def test_executions_that_are_led_to_values_do_not_count_as_prior_draws():
    engines = ab.DCC(), ab.DCC(start=[{"K": 1, "shift": 2.0}, {"K": 0}] * 5)
    without, posterior = (ab.infer(counted, 1.0, seed=0, engine=engine, tolerance=0.05) for engine in engines)
    one, other = priors(without), priors(posterior)
    assert one == other
    assert len(one) == 6
    error = np.hypot(without.log_evidence_sd, posterior.log_evidence_sd)
    assert abs(posterior.log_evidence - without.log_evidence) < 4 * error < 0.5


def test_nothing_named_changes_nothing():
    assert ab.DCC(start=[]) == ab.DCC()
    assert repr(ab.DCC(start=())) == repr(ab.DCC())
    one, other = (ab.infer(counted, 1.0, seed=0, budget=10_000, engine=engine) for engine in (None, ab.DCC(start=())))
    assert (one.log_evidence, one.log_evidence_sd) == (other.log_evidence, other.log_evidence_sd)
    assert one.run.executions == other.run.executions


def test_a_path_behind_a_condition_is_named_by_a_real_value():
    def deep(log_factor):
        if ab.sample("x", dist.Normal(0.0, 1.0)) > 6:
            ab.factor("behind", log_factor)

    settings = {"discovery": Discovery(solving=None), "proposals": 0}
    truth = np.logaddexp(norm.logcdf(6), norm.logsf(6) + 25.0)
    assert ab.infer(deep, 25.0, seed=0, engine=ab.DCC(**settings)).log_evidence < truth - 1
    posterior = ab.infer(deep, 25.0, seed=0, engine=ab.DCC(start={"x": 6.5}, **settings))
    assert abs(posterior.log_evidence - truth) < 4 * posterior.log_evidence_sd < 0.4


def test_a_path_of_an_interpreted_program_is_named():
    def simulator(y, log_factor):
        probs = np.array([1 - RARE, RARE])
        z = ab.sample("z", dist.Categorical(jnp.asarray(probs)))
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        level = float(np.float64(x) * 0.0)  # leaves JAX
        if z:
            ab.factor("behind", log_factor)
        ab.observe("y", dist.Normal(level, 1.0), y)

    settings = {"executions": 50, "max_executions": 50, "systematic": False, "proposals": 0}
    engine = ab.DCC(start={"z": 1}, discovery=Discovery(solving=None), **settings)
    posterior = ab.infer(simulator, Y, -np.log(RARE), seed=0, budget=3_000, engine=engine)
    truth = norm.logpdf(Y) + np.log(2)
    assert abs(posterior.log_evidence - truth) < 4 * posterior.log_evidence_sd + 1e-6
    assert abs(posterior.log_evidence - truth) < 0.1


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "kind", "message"),
    [
        ({"code": 0, "coda": 1}, UnknownName, r"start names the site 'coda', .* Did you mean 'code'\?"),
        ({"zzz": 1}, UnknownName, r"start names the site 'zzz', which no execution has met. There are: code."),
        ({"y": 1.0}, BadSetting, r"'y' \(test_start.py:\d+\): start gives it a value, but it is observed"),
        ({"code": 5}, BadSetting, r"site 'code' \(test_start.py:\d+\): start gives it 5, which has prior prob.* zero"),
        ({"code": -1}, BadSetting, r"site 'code' .* start gives it -1, which has prior probability zero"),
        ({"code": 0.5}, BadSetting, r"site 'code' .* start gives it 0.5, but it is discrete. Give it a whole number"),
        ({"code": [0, 1]}, BadSetting, r"site 'code' .* start gives it \[0, 1\], but its value must be one number"),
    ],
)
def test_a_name_or_a_value_that_cannot_be_is_refused(start, kind, message):
    with pytest.raises(kind, match=message):
        ab.infer(code, Y, 0.0, engine=ab.DCC(start=[{"code": 1}, start]))


@pytest.mark.parametrize("start", [5, "code", ["code"], {}, [{}], {"code": "far"}, {"code": np.nan}, {3: 1}, None])
def test_a_start_is_mappings_from_names_to_numbers(start):
    with pytest.raises(BadSetting, match=r"^start must be a mapping from names of sites to their values, .*; got "):
        ab.DCC(start=start)


def test_values_of_numpy_become_plain_numbers():
    engine = ab.DCC(start={"z": np.arange(3), "K": np.int64(5), "is_in": np.True_})
    assert engine.start == ({"z": [0, 1, 2], "K": 5, "is_in": True},)


def test_a_site_that_the_other_values_do_not_lead_to_is_noted(caplog):
    with caplog.at_level(logging.WARNING, logger="anabranch"):
        starts = [{"code": 0, "mu": 1.0}, {"code": FAR}]
        posterior = ab.infer(code, Y, LOG_FACTOR, seed=0, engine=ab.DCC(start=starts))
    note = (
        "start: no execution led to code = 0, mu = 1.0 has met the site 'mu'. Name the decisions that lead to it, too."
    )
    assert posterior.run.notes == (note,)
    assert note in caplog.text
    assert abs(posterior.log_evidence - LOG_EVIDENCE) < 4 * posterior.log_evidence_sd + 1e-9


def test_a_checkpoint_is_of_its_start(tmp_path):
    engine = ab.DCC(start={"code": FAR})
    one, again = (ab.infer(code, Y, LOG_FACTOR, seed=0, engine=engine, checkpoint=tmp_path / "run") for _ in range(2))
    assert one.log_evidence == again.log_evidence
    with pytest.raises(CannotLoad, match="other the settings of the engine"):
        ab.infer(code, Y, LOG_FACTOR, seed=0, engine=ab.DCC(), checkpoint=tmp_path / "run")
