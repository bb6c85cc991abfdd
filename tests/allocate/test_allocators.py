"""The allocation rules: the paper's formula, and what holds for all of them."""

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from anabranch.allocate import UCB, PathSummary, SuccessiveHalving, Uniform
from anabranch.conquer.estimate import Estimate

RULES = [UCB(), Uniform(), SuccessiveHalving()]


def estimate(log_weights):
    return Estimate.from_weights(np.zeros((len(log_weights), 1)), np.asarray(log_weights, float), 0, "test")


def known(log_evidence, sd=0.1):
    return Estimate.from_draws(np.zeros((4, 1)), np.zeros(4), log_evidence, sd, 0, "test")


def some_arms(shift=0.0):
    rng = np.random.default_rng(0)
    settings = [(3, -2.0, 0.5), (1, -1.0, 1.0), (7, 0.0, 0.2), (2, -4.0, 2.0), (5, -0.5, 0.7)]
    return [
        PathSummary(visits, estimate(shift + mean + sd * rng.standard_normal(200))) for visits, mean, sd in settings
    ]


def choose(rule, arms, n):
    return rule.choose(arms, n, np.random.default_rng(0))


# The paper's utility ------------------------------------------------------------------------------------------------


def utility_in_plain_floats(arms, delta, beta, kappa, look_ahead):
    """The formula of appendix F, as it stands there."""
    S = np.array([arm.visits for arm in arms])
    Z = np.array([np.exp(arm.estimate.log_evidence) for arm in arms])
    sigma = np.array([arm.estimate.weight_sd * np.exp(arm.estimate.log_evidence) for arm in arms])
    tau = np.sqrt(Z**2 + (1 + kappa) * sigma**2)
    threshold = max(arm.estimate.log_weight_max for arm in arms)
    below = np.array([stats.norm.cdf(threshold, a.estimate.log_weight_mean, a.estimate.log_weight_sd) for a in arms])
    p = 1 - below**look_ahead
    bonus = beta * np.log(S.sum()) / np.sqrt(S)
    return ((1 - delta) * tau / tau.max() + delta * p / p.max() + bonus) / S


@pytest.mark.parametrize(("delta", "beta", "kappa", "look_ahead"), [(0.5, 0.1, 1.0, 1000), (0.2, 2.0, 0.0, 10)])
def test_the_utility_is_the_papers(delta, beta, kappa, look_ahead):
    arms, rule = some_arms(), UCB(delta, beta, kappa, look_ahead)
    expected = utility_in_plain_floats(arms, delta, beta, kappa, look_ahead)
    visits = np.array([arm.visits for arm in arms])
    np.testing.assert_allclose(rule.utilities(rule.rewards(arms), visits), expected, rtol=1e-9)
    assert choose(rule, arms, 1) == [np.argmax(expected)]


def test_a_round_is_chosen_one_by_one_with_growing_visits():
    arms, rule = some_arms(), UCB()
    expected = []
    for _ in range(12):
        expected.append(int(np.argmax(utility_in_plain_floats(arms, 0.5, 0.1, 1.0, 1000))))
        k = expected[-1]
        arms[k] = PathSummary(arms[k].visits + 1, arms[k].estimate)
    assert choose(rule, some_arms(), 12) == expected
    assert len(set(expected)) > 1


@pytest.mark.parametrize("shift", [5000.0, -5000.0])
def test_only_ratios_of_evidence_matter(shift):
    rule = UCB()
    np.testing.assert_allclose(rule.rewards(some_arms(shift)), rule.rewards(some_arms()), rtol=1e-6)
    assert choose(rule, some_arms(shift), 20) == choose(rule, some_arms(), 20)


def test_evidence_that_spans_thousands_of_nats():
    arms = [PathSummary(3, known(log_evidence)) for log_evidence in (-9000.0, 4000.0, 3998.0, -1e6)]
    rewards = UCB().rewards(arms)
    assert np.isfinite(rewards).all()
    assert np.argmax(rewards) == 1
    assert Counter(choose(UCB(beta=0.01), arms, 20))[1] > 8


def test_a_wide_spread_of_weights_is_explored():
    """Of two arms with the same evidence the one with the heavier tail of weights is next."""
    rng = np.random.default_rng(1)
    narrow = estimate(0.1 * rng.standard_normal(500))
    wide = estimate(3.0 * rng.standard_normal(500) - 4.5)
    rewards = UCB().rewards([PathSummary(1, narrow), PathSummary(1, wide)])
    assert rewards[1] > rewards[0]


def test_no_arm_is_starved_in_the_end():
    arms = [PathSummary(1, known(0.0)), PathSummary(1, known(-2000.0)), PathSummary(1, Estimate.nothing(1, 0, "test"))]
    counts = Counter(choose(UCB(beta=0.1), arms, 2000))
    assert min(counts[k] for k in range(3)) > 20
    assert counts[0] > 4 * max(counts[1], counts[2])


@pytest.mark.parametrize(
    "odd",
    [
        Estimate.nothing(1, 0, "test"),
        known(-3.0, np.inf),
        known(-np.inf, np.inf),
        known(-3.0, np.nan),
        estimate([0.0]),
        estimate([0.0, -np.inf, -1e150]),
        known(-3.0, 1e300),
    ],
)
def test_strange_estimates_do_no_harm(odd):
    for arms in (
        [PathSummary(1, odd)],
        [PathSummary(2, odd), PathSummary(1, odd)],
        [PathSummary(1, odd), *some_arms(), PathSummary(3, None)],
    ):
        rewards = UCB().rewards(arms)
        assert ((rewards >= 0) & (rewards <= 1)).all()
        for rule in RULES:
            assert len(choose(rule, arms, 9)) == 9


def test_an_unknown_error_counts_as_much_as_the_best():
    rewards = UCB(delta=0.0).rewards(
        [PathSummary(1, known(-50.0, np.inf)), PathSummary(1, known(-1.0)), PathSummary(1, known(-2.0))]
    )
    assert rewards[0] == rewards[1] > rewards[2] > 0


# What holds for all of them -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_arms_never_visited_come_first(rule):
    arms = [PathSummary(1, known(100.0)), PathSummary(0, None), PathSummary(4, known(-3.0)), PathSummary(0, None)]
    assert choose(rule, arms, 1) == [1]
    assert sorted(choose(rule, arms, 2)) == [1, 3]
    assert set(choose(rule, arms, 3)) >= {1, 3}


@pytest.mark.parametrize("rule", RULES)
def test_new_arms_are_visited_in_turn(rule):
    assert sorted(choose(rule, [PathSummary(0, None)] * 4, 4)) == [0, 1, 2, 3]


@pytest.mark.parametrize("rule", RULES)
def test_exact_arms_get_nothing_more(rule):
    exact = PathSummary(1, known(1000.0, 0.0))
    assert set(choose(rule, [exact, PathSummary(1, known(0.0)), exact, PathSummary(0, None)], 12)) == {1, 3}
    assert choose(rule, [exact, exact], 5) == []
    assert choose(rule, [], 5) == []


@pytest.mark.parametrize("rule", RULES)
def test_the_choice_depends_on_nothing_else(rule):
    arms = some_arms()
    assert choose(rule, arms, 30) == choose(rule, arms, 30)
    assert choose(rule, arms, 30)[:10] == choose(rule, arms, 10)
    assert all(isinstance(k, int) for k in choose(rule, arms, 30))


def test_uniform_evens_the_visits():
    chosen = choose(Uniform(), [PathSummary(5, known(0.0)), PathSummary(0, None), PathSummary(2, known(0.0))], 8)
    counts = Counter(chosen)
    assert [5 + counts[0], counts[1], 2 + counts[2]] == [5, 5, 5]


def test_halving_gives_the_budget_of_its_rounds():
    """Of eight arms: 8, 4, 2 and 1 are left, and each round has the same budget."""
    arms = [PathSummary(1, known(-1000.0 * k)) for k in range(8)]
    visits = 1 + np.bincount(choose(SuccessiveHalving(), arms, 3192), minlength=8)
    expected = np.array([1 / 8 + 1 / 4 + 1 / 2 + 1, 1 / 8 + 1 / 4 + 1 / 2, *[1 / 8 + 1 / 4] * 2, *[1 / 8] * 4]) / 4
    np.testing.assert_allclose(visits / visits.sum(), expected, atol=0.002)


@pytest.mark.parametrize("settings", [{"delta": 1.5}, {"beta": -1.0}, {"kappa": -0.1}, {"look_ahead": 0}])
def test_settings_of_the_utility_are_checked(settings):
    [name] = settings
    with pytest.raises(ValueError, match=name):
        UCB(**settings)


def test_settings_of_halving_are_checked():
    with pytest.raises(ValueError, match="factor"):
        SuccessiveHalving(factor=1)
