"""First visits: of which paths, in which order, and with how many evaluations."""

from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch.allocate import ActiveSet, AllocationState, FirstVisits, PathRecord, PathTable, Thresholds
from anabranch.allocate.first_visits import by_promise, that_may_matter
from anabranch.conquer import SMC, PathTarget
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.target import Account
from anabranch.limits import Limits

RULE = FirstVisits()


def record(number, *, prior=-1.0, dim=1, log_evidence=None, best=-np.inf, visits=0, sd=0.1, **more):
    path = SimpleNamespace(signature=number, log_prior_probability=prior, dim=dim, interpreted=False)
    estimate = None
    if log_evidence is not None:
        estimate = replace(Estimate.nothing(dim, 10, "test"), log_evidence=log_evidence, log_evidence_sd=sd)
    target = SimpleNamespace(best_likelihood=best, account=Account(), dim=dim)
    return PathRecord(number, path, 1, target, estimate=estimate, visits=visits, **more)


def state(*records, settings=None, budget=1_000_000, **more):
    table = PathTable({each.path.signature: each for each in records})
    return AllocationState(settings=settings or ab.DCC(), limits=Limits(budget), table=table, **more)


def needs_visit(record, state):
    return RULE.needs_visit(record, state, state.table.log_evidence)


def test_a_path_without_mass_is_tried_again_before_it_is_believed():
    known, empty = record(0, log_evidence=-3.0, visits=1), record(1, log_evidence=-np.inf, visits=2)
    assert needs_visit(empty, state(known, empty))
    empty.visits = 3
    assert not needs_visit(empty, state(known, empty))


def test_a_rough_estimate_that_may_matter_is_tried_again():
    """A limit has ended the tempering of a light path, which may have more."""
    known, light = record(0, log_evidence=-3.0, visits=1), record(1, log_evidence=-16.0, visits=1, prior=-np.inf)
    assert not needs_visit(light, state(known, light))
    light.estimate = replace(light.estimate, is_rough=True, log_possible=-12.0)
    assert needs_visit(light, state(known, light))
    light.estimate = replace(light.estimate, log_possible=-16.0, log_evidence=-60.0)
    assert needs_visit(light, state(known, light))
    light.estimate = replace(light.estimate, log_possible=-40.0)
    assert not needs_visit(light, state(known, light))
    light.estimate = replace(light.estimate, log_possible=-12.0)
    light.visits = 3
    assert not needs_visit(light, state(known, light))


def test_while_there_is_no_mass_anywhere_the_search_goes_on():
    empty = record(0, log_evidence=-np.inf, visits=3)
    assert needs_visit(empty, state(empty))
    empty.visits = 30
    assert not needs_visit(empty, state(empty))


def test_an_exact_estimate_without_mass_is_believed():
    exact = record(0, log_evidence=-np.inf, sd=0.0, visits=1)
    assert not needs_visit(exact, state(exact))


@pytest.mark.parametrize(("prior", "matters"), [(-50.0, True), (-150.0, False), (-np.inf, True)])
def test_a_prior_too_small_for_the_best_likelihood_seen_rules_a_path_out(prior, matters):
    solved = record(0, log_evidence=-10.0, prior=0.0, best=-5.0, visits=1)
    fresh = record(1, prior=prior)
    assert bool(that_may_matter([fresh], state(solved, fresh))) == matters


def test_a_strict_judgement_goes_by_mean_likelihoods():
    """The mean likelihood is e^-10: e^-45 of the prior would need one that is e^15 times larger to weigh e^-20."""
    solved = record(0, log_evidence=-10.0, prior=0.0, best=0.0, visits=1)
    fresh = record(1, prior=-45.0)
    assert that_may_matter([fresh], state(solved, fresh)) == [fresh]
    assert that_may_matter([fresh], state(solved, fresh), by_mean=True) == []


def test_easy_paths_are_those_of_few_dimensions_or_with_a_part_of_the_prior():
    few = state(record(0))
    assert RULE.is_easy(record(1, dim=8, prior=-30.0), few)
    assert RULE.is_easy(record(1, dim=50, prior=-5.0), few)
    assert not RULE.is_easy(record(1, dim=9, prior=-7.0), few)


def test_of_many_paths_the_easy_ones_are_next_to_the_mass_or_begun():
    many = state(*(record(number) for number in range(200)))
    assert RULE.is_easy(record(0, dim=5, parent=0.5), many)
    assert RULE.is_easy(record(0, dim=50, visits=1), many)
    assert not RULE.is_easy(record(0, dim=5, parent=1e-3), many)
    assert not RULE.is_easy(record(0, dim=50, parent=0.5), many)


def test_the_simplest_and_the_likeliest_take_turns():
    simple = record(0, dim=1, prior=-9.0, parent=0.5, parent_likelihood=-2.0)
    simpler = record(1, dim=2, prior=-8.0, parent=0.5, parent_likelihood=-2.0)
    likely = record(2, dim=9, prior=-1.0, parent=0.5, parent_likelihood=-2.0)
    likelier = record(3, dim=8, prior=-2.0, parent=0.5, parent_likelihood=-2.0)
    assert [each.number for each in by_promise([likelier, simpler, likely, simple], state())] == [0, 2, 1, 3]


def test_paths_proposed_from_the_mass_come_before_the_others():
    far, near = record(0, prior=-1.0), record(1, prior=-9.0, parent=0.9, parent_likelihood=-2.0)
    assert by_promise([far, near], state())[0] is near


def test_a_round_of_first_visits_is_half_a_round_of_the_most_promising():
    records = [record(number, prior=-float(number)) for number in range(20)]
    visits = RULE.visits(state(*records, settings=ab.DCC(allocations=8, strategy=SMC())))
    assert [visit.record.number for visit in visits] == [0, 1, 2, 3]
    assert all(visit.is_first and visit.evaluations <= visit.max_evaluations for visit in visits)


class SolvedBy(SMC):
    """A strategy that needs so many evaluations for each coordinate, and is exact then."""

    def exact_visit(self, path):
        return 500 * path.dim


def test_a_visit_that_makes_a_path_exact_is_as_long_as_that_takes():
    records = [record(number, prior=-float(number), dim=number) for number in range(1, 201)]
    visits = RULE.visits(state(*records, settings=ab.DCC(allocations=8, strategy=SolvedBy()), budget=50_000))
    assert [visit.evaluations for visit in visits] == [500, 1_000, 1_500, 2_000]
    assert all(visit.evaluations <= visit.max_evaluations for visit in visits)
    visits = RULE.visits(state(*records, settings=ab.DCC(allocations=8, strategy=SolvedBy()), budget=6_000))
    assert [visit.evaluations for visit in visits] == [500, 1_000, 1_500, 300], "if the budget allows it"


def test_first_visits_without_a_gain_end_those_that_are_not_easy():
    solved = record(0, log_evidence=-10.0, prior=0.0, best=-5.0, visits=1)
    easy, hard = record(1, dim=3), record(2, dim=30, prior=-7.0)
    assert RULE.waiting(state(solved, easy, hard)) == [easy, hard]
    assert RULE.waiting(state(solved, easy, hard, budget=20_000, gains=[0.0] * 9)) == [easy]
    assert RULE.waiting(state(solved, easy, hard, gains=[0.0] * 9)) == [easy, hard], "all can be visited"


@pytest.mark.parametrize(("paths", "evaluations"), [(1, 10_000), (100, 6_000), (101, 4_950), (10_000, 300)])
def test_all_first_visits_take_half_of_the_budget_or_find_modes(paths, evaluations):
    assert RULE.evaluations(state(*(record(number) for number in range(paths)))) == evaluations


def test_of_many_paths_the_strategy_says_what_needs_no_compilation():
    many = state(*(record(number) for number in range(150)))
    assert RULE.affordable(record(0, dim=8), 4_000, many) == 2_499
    assert RULE.affordable(record(0, dim=9), 4_000, many) == 4_000
    many.settings = ab.DCC(strategy=SMC())
    assert RULE.affordable(record(0, dim=8), 4_000, many) == 4_000


def test_what_counts_as_many_is_a_setting():
    empty = record(1, log_evidence=-np.inf, visits=1)
    few, many = (ab.DCC(thresholds=Thresholds(many_paths=number)) for number in (2, 1))
    known = record(0, log_evidence=-3.0, visits=1)
    assert needs_visit(empty, state(known, empty, settings=few))
    assert not needs_visit(empty, state(known, empty, settings=many))


def in_modes(y):
    """Ten paths with two modes each; the fourth is by far the heaviest."""
    k = ab.sample("k", dist.DiscreteUniform(0, 9))
    x = ab.sample("x", dist.Normal(jnp.zeros(int(k) + 1), 1.0))
    ab.observe("y", dist.Normal((x**2).sum(), 0.5), y if k == 3 else y + 20.0 * (1 + k))


def paths_of(program, *data):
    found = ab.find_paths(program, *data).paths
    return [PathRecord(number, path, 1, PathTarget(path)) for number, path in enumerate(found)]


def test_several_paths_are_scouted_before_their_first_visits():
    records = paths_of(in_modes, 4.0)
    several = state(*records)
    several.active = ActiveSet(threshold=1).proposed({each.path.signature: 1 for each in records}).advance(
        {}, np.random.default_rng(0)
    )  # fmt: skip
    scouts = RULE.visits(several)
    assert all(visit.is_scout and visit.evaluations == 500 and visit.max_evaluations == 1_000 for visit in scouts)
    for place, each in enumerate(records):
        each.visits, each.is_scouted = 1, True
        each.estimate = replace(Estimate.nothing(each.path.dim, 10, "scout"), log_evidence=-100.0 - 7 * place)
    records[6].estimate = replace(records[6].estimate, log_evidence=-3.0)
    first = RULE.visits(several)
    assert [visit.record for visit in first] == [records[6]]
    assert first[0].is_first
    assert not first[0].is_scout
    records[6].is_scouted = False
    assert [visit.record.number for visit in RULE.visits(several)] == [0, 1, 2, 3, 4, 5, 7, 8]


@pytest.mark.parametrize(
    ("why", "settings", "number", "budget"),
    [
        ("a few paths", {}, 7, 1_000_000),
        ("visits hardly longer than a scout", {}, 10, 20_000),
        ("a length of the user's", {"evaluations_per_first_visit": 5_000}, 10, 1_000_000),
        ("a strategy that cannot scout", {"strategy": SMC()}, 10, 1_000_000),
    ],
)
def test_nothing_is_scouted_of(why, settings, number, budget):
    records = paths_of(in_modes, 4.0)[:number]
    some = state(*records, settings=ab.DCC(**settings), budget=budget)
    assert not any(RULE.is_to_scout(each, some) for each in records)


def test_the_heaviest_of_several_paths_is_found_before_the_others_are_searched():
    """Scouts of all ten paths take less than one first visit of each would, and the second opinion is still asked."""
    posterior = ab.infer(in_modes, 4.0, seed=0, budget=300_000)
    history = posterior.history
    firsts = history.path[10:]
    assert sorted(history.path[:10]) == sorted(set(history.path))
    assert (history.spent[:10] < 1_100).all()
    assert firsts.iloc[0] == posterior.paths.path.iloc[0] == "k = 3"
    assert posterior.probability("k")[3] > 0.999


def test_scouted_paths_far_below_the_rest_are_left_once_first_visits_are_in_vain():
    known = record(0, log_evidence=-3.0, visits=1, prior=0.0, best=0.0)
    far = record(1, log_evidence=-500.0, visits=1, prior=-9.0, dim=20, best=-400.0, is_scouted=True)
    easy = record(2, log_evidence=-500.0, visits=1, prior=-9.0, dim=2, best=-400.0, is_scouted=True)
    for each in (far, easy):
        each.path.log_prior_probability, each.is_proper = -9.0, False
    some = state(known, far, easy)
    some.active = ActiveSet(threshold=1).proposed({0: 1, 1: 1, 2: 1}).advance({0: -3.0}, np.random.default_rng(0))
    far.target.best_likelihood = easy.target.best_likelihood = 0.0  # the likelihood alone does not rule them out
    assert {each.number for each in RULE.waiting(some)} == {1, 2}
    some.gains = [np.inf, *[0.0] * 9]
    assert RULE.waiting(some) == [easy]
