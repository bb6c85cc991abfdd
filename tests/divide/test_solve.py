"""Answers that no execution has met: how far they are, how they are reached, how probable they are, what is listed."""

import cloudpickle
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import norm, poisson

import anabranch as ab
from anabranch.divide import Constraints, Solved, Solving
from anabranch.divide.guarded_prior import Guard, GuardedPrior, whole_path
from anabranch.divide.splitting import Splitting, pooled
from anabranch.divide.unmet import unmet_answers, unmet_values
from anabranch.limits import LimitReached, Limits, enforced


def standard(name):
    return ab.sample(name, dist.Normal(0.0, 1.0))


def solved(program, *args, solving=None, executions=1_000):
    """The division, after all that can be solved for."""
    division = ab.find_paths(program, *args, executions=executions)
    state, solving = Solved(), solving or Solving()
    groups = [group for found in solving.answers(division, state, 0) for group in found]
    return division, state, groups + solving.values(division, state, 0)


# Margins ------------------------------------------------------------------------------------------------------------

CONDITIONS = {
    "gt": (lambda x, y: x > y, lambda x, y: x - y),
    "le": (lambda x, y: x <= 2 * y, lambda x, y: 2 * y - x),
    "eq": (lambda x, y: jnp.floor(x).astype(int) == 0, lambda x, y: -np.abs(np.floor(x))),
    "ne": (lambda x, y: jnp.floor(x).astype(int) != 0, lambda x, y: np.abs(np.floor(x))),
    "real": (lambda x, y: x == y, lambda x, y: np.full(len(x), -np.inf)),
    "and": (lambda x, y: (x > 0.1) & (y < 1), lambda x, y: np.minimum(x - 0.1, 1 - y)),
    "or": (lambda x, y: jnp.logical_or(x > 1, y > 2), lambda x, y: np.maximum(x - 1, y - 2)),
    "not": (lambda x, y: ~(x > y), lambda x, y: y - x),
    "all": (lambda x, y: jnp.all(jnp.stack([x, y, x + y]) > 0.5), lambda x, y: np.min([x, y, x + y], axis=0) - 0.5),
    "any": (lambda x, y: jnp.any(jnp.stack([x, -y]) > 0.5), lambda x, y: np.maximum(x, -y) - 0.5),
    "moved": (lambda x, y: (jnp.stack([x, y]) > 0.0).reshape(2, 1).T[0, 1], lambda x, y: y),
    "constant": (lambda x, y: (x > 0) & jnp.asarray(True), lambda x, y: x),
}


@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.parametrize("answer", [True, False])
def test_a_margin_is_the_distance_to_the_other_side(name, answer):
    condition, distance = CONDITIONS[name]

    def program():
        if condition(standard("x"), standard("y")):
            ab.factor(0.0)

    recording = ab.find_paths(program, executions=200).paths[0].recording
    (decision,) = recording.decisions
    prior = GuardedPrior(recording, [Guard(decision.node, np.array(answer))], [])
    points = np.random.default_rng(0).normal(size=(100, 2))
    particles = prior.at(points)
    expected = distance(*points.T) * (1 if answer else -1)
    holds = np.asarray(condition(*map(jnp.asarray, points.T)) if name in ("eq", "ne") else expected > 0)
    assert ((particles.met == 1) == (holds == (answer or name not in ("eq", "ne")))).all()
    np.testing.assert_allclose(particles.margin, np.minimum(expected, 0.0))
    behind = [("x", "y").index(site.name) for site in prior.sites]
    np.testing.assert_allclose(particles.log_prior, norm.logpdf(points[:, behind]).sum(axis=1))


def test_the_score_counts_the_conditions_that_hold_before_the_first_that_does_not():
    def program():
        x, y = standard("x"), standard("y")
        if x > 0 and y > 1:
            ab.factor(0.0)

    division = ab.find_paths(program, executions=200)
    (recording,) = [each for each in division.paths[0].recordings if [bool(d.answer) for d in each.decisions] == [1, 1]]
    particles = whole_path(recording).at(np.array([[-2.0, 5.0], [3.0, -1.0], [3.0, 1.5]]))
    assert particles.met.tolist() == [0, 1, 2]
    assert particles.margin.tolist() == [-2.0, -2.0, 0.0]


# Splitting ----------------------------------------------------------------------------------------------------------


def far(a, b):
    if standard("x") - standard("y") > a:
        if ab.sample("u", dist.Exponential(1.0)) > b:
            ab.sample("behind", dist.Normal(0.0, 1.0))


@pytest.mark.parametrize(("a", "b"), [(9.0, 0.1), (5.0, 12.0)])
def test_the_prior_of_a_rare_path_is_drawn_and_its_probability_is_right(a, b):
    division, _, _ = solved(far, a, b)
    (path,) = [path for path in division if "behind" in path.addresses]
    truth = norm.logsf(a / np.sqrt(2)) - b
    drawn = [path.prior(500, seed=seed) for seed in range(2)]
    for each in drawn:
        assert len(each.points) == 500
        assert path.evaluate(each.points, compile=False).inside.all()
        assert abs(each.log_probability - truth) < 4 * each.log_probability_sd < 1.5
    values = path.values(np.concatenate([each.points for each in drawn]))
    assert (values["u"] > b).all()
    assert abs(values["u"].mean() - b - 1) < 0.2  # the exponential distribution has no memory
    assert abs(values["behind"].mean()) < 4 / np.sqrt(len(values["behind"]))
    assert abs(path.log_prior_probability - truth) < 2


def test_probabilities_of_fixed_values_that_depend_on_the_draw_count():
    def program():
        x = standard("x")
        if ab.sample("z", dist.Bernoulli(logits=x)):
            if x > 5:
                ab.sample("behind", dist.Normal(0.0, 1.0))

    division, _, _ = solved(program)
    path = min(division, key=lambda path: path.log_prior_probability)
    assert path.recording.fixed["z"] == 1
    x = np.linspace(5, 12, 20_001)
    truth = np.log(np.trapezoid(norm.pdf(x) / (1 + np.exp(-x)), x))
    drawn = path.prior(1_000, seed=0)
    assert abs(drawn.log_probability - truth) < 4 * drawn.log_probability_sd < 1.5


def test_runs_are_unbiased_and_their_error_is_honest():
    division, _, _ = solved(far, 9.0, 0.1)
    (path,) = [path for path in division if "behind" in path.addresses]
    prior = path.recording.once(whole_path)
    splits = Splitting(particles=200).run(prior, seed=0, number=20)
    log_probability, sd = pooled(splits)
    truth = norm.logsf(9 / np.sqrt(2)) - 0.1
    assert abs(log_probability - truth) < 4 * sd < 0.8
    spread = np.std([split.log_probability for split in splits])
    assert 0.4 < np.sqrt(np.mean([split.variance for split in splits])) / spread < 3


def test_the_same_seed_gives_the_same_draws():
    one, other = (min(solved(far, 5.5, 0.1)[0], key=lambda path: path.log_prior_probability) for _ in range(2))
    assert one.log_prior_probability == other.log_prior_probability
    assert (one.prior(300, seed=1).points == other.prior(300, seed=1).points).all()
    assert (one.prior(300, seed=1).points != one.prior(300, seed=2).points).any()


# Solving ------------------------------------------------------------------------------------------------------------


def test_a_conjunction_is_met_one_part_after_the_other():
    def program():
        a, b, c = (standard(name) for name in "abc")
        if a > 5 and b > 5 and c < -5:
            ab.factor("behind", 1.0)

    division, _, groups = solved(program)
    assert division.unmet == []
    behind = [path for path in division if path.apart and path.recording.observations]
    assert len(behind) == 1
    assert behind[0].signature != division.paths[0].signature
    values = [group.values() for group in groups if group.path is behind[0]]
    assert all((each["a"] > 5).all() and (each["b"] > 5).all() and (each["c"] < -5).all() for each in values)


def test_executions_that_were_led_there_do_not_count_as_prior_draws():
    division, _, _ = solved(far, 9.0, 0.1)
    assert division.root.visits == 1_000
    assert all(path.log_prior_probability < -15 for path in division if path.apart)
    assert division.prior_mass_found == 1.0


def test_what_cannot_be_met_is_listed_and_given_up():
    def program():
        x = standard("x")
        if x > 1:
            if x > 0:
                ab.factor(1.0)
        if x == 0.5:
            ab.factor(1.0)

    division, state, _ = solved(program)
    unmet = [sentence.split(" (")[0] + sentence.split(")")[1] for sentence in division.unmet]
    assert unmet == ["`x == 0.5` was never true", "`x > 0` was never false"]
    assert state.evaluations < 300_000


def test_one_sentence_for_a_loop():
    def program():
        turns = 0
        while ab.sample(f"x{turns}", dist.Normal(0.0, 1.0)) > 1:
            turns += 1

    division = ab.find_paths(program)
    (sentence,) = division.unmet
    assert "was never true after 1 of the " in sentence


def test_values_are_tried_in_the_order_of_their_probability():
    def program():
        for _ in range(ab.sample("k", dist.Poisson(3.0))):
            ab.sample(dist.Normal(0.0, 1.0))

    division = ab.find_paths(program)
    met = {int(path.recording.fixed["k"]) for path in division}
    unmet = sorted(set(range(30)) - met, key=lambda k: -poisson.logpmf(k, 3.0))
    state = Solved()
    Solving(max_values=4).values(division, state, 0)
    assert state.values == {("k", k) for k in unmet[:4]}
    assert {int(path.recording.fixed["k"]) for path in division} == met | set(unmet[:4])
    assert Solving(max_values=4).values(division, state, 0) == []


def test_values_of_a_finite_support_are_named():
    def program():
        if ab.sample("k", dist.Categorical(jnp.array([0.5, 0.5 - 1e-9, 1e-9]))) == 2:
            standard("behind")

    division = ab.find_paths(program)
    (sentence,) = division.unmet
    assert sentence.startswith("`k` (")
    assert sentence.endswith("was never 2")
    Solving().values(division, Solved(), 0)
    assert division.unmet == []
    assert {int(path.recording.fixed["k"]) for path in division} == {0, 1, 2}


def test_nothing_is_done_where_everything_was_met():
    def program():
        x = standard("x")
        if ab.sample("z", dist.Bernoulli(0.5)) and x > 0:
            ab.factor(1.0)

    division, state, groups = solved(program)
    assert groups == []
    assert state == Solved()
    assert unmet_answers(division.root) == []


def test_the_number_of_answers_is_bounded():
    def program():
        turns = 0
        while ab.sample(f"x{turns}", dist.Normal(0.0, 1.0)) > 3:
            turns += 1

    _, state, _ = solved(program, solving=Solving(max_answers=3))
    assert len(state.tried) == 3
    _, state, _ = solved(program, solving=Solving(max_evaluations=1))
    assert len(state.tried) == 1


def test_a_limit_ends_it():
    division = ab.find_paths(far, 9.0, 0.1)
    limits = Limits()
    limits.cancelled.set()
    with enforced(limits), pytest.raises(LimitReached):
        list(Solving().answers(division, Solved(), 0))
    assert len(division) == 1


def test_a_path_apart_is_itself_after_pickling():
    division, _, _ = solved(far, 9.0, 0.1)
    for path in division:
        again = cloudpickle.loads(cloudpickle.dumps(path))
        assert again.signature == path.signature
        assert again.log_prior_probability == path.log_prior_probability


def test_executions_find_a_path_apart_again():
    division, _, _ = solved(far, 9.0, 0.1)
    values = {"x": np.array([5.0]), "y": np.array([-5.0]), "u": np.array([1.0])}
    (group,) = division.send(Constraints(values), 1, seed=0)
    assert group.path is not None
    assert group.path.apart
    assert len(division) == 3


def test_of_a_large_gap_between_values_only_the_ends_are_tried():
    def program():
        if ab.sample("K", dist.DiscreteUniform(0, 10**9)) > 5:
            ab.sample("x", dist.Normal(0.0, 1.0))

    division = ab.find_paths(program, executions=1)
    division.route({"K": np.array([10, 12, 500_000])})
    (first,) = (int(child.answer) for child in division.root.children.values() if child.answer > 500_000)
    near = [v + step for v in (12, 500_000, first) for step in range(-3, 4)] + [7, 8, 9, 11]
    values = [each.value for each in unmet_values(division.root, 3)]
    assert values == sorted(set(near) - {10, 12, 500_000, first})
