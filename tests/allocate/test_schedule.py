"""The schedule: which rule owns a round, and what the rules after the first visits ask for."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch.allocate import (
    ActiveSet,
    AllocationState,
    DoubtedPaths,
    FirstVisits,
    PathRecord,
    PathTable,
    Refinement,
    Uniform,
    Visit,
)
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.target import Account
from anabranch.limits import Limits
from helpers import disguised


def record(number, log_evidence=-1.0, *, sd=0.1, ess=1e4, possible=None, evaluations=10_000, visits=1, **more):
    path = SimpleNamespace(signature=number, log_prior_probability=-1.0, dim=1, interpreted=False)
    target = SimpleNamespace(best_likelihood=0.0, account=Account(evaluations), dim=1)
    possible = log_evidence if possible is None else possible
    estimate = replace(Estimate.nothing(1, 10, "test"), log_evidence=log_evidence, log_evidence_sd=sd, ess=ess,
                       log_possible=possible, weight_sd=1.0)  # fmt: skip
    made = PathRecord(number, path, 1, target, estimate=estimate, visits=visits, **more)
    made.is_proper = False
    return made


def state(*records, budget=1_000_000, tolerance=0.005, **settings):
    table = PathTable({each.path.signature: each for each in records})
    active = ActiveSet(active=tuple(table.records))
    return AllocationState(
        settings=ab.DCC(**settings), limits=Limits(budget, None, tolerance), table=table, active=active
    )


def test_the_first_rule_with_visits_owns_the_round():
    @dataclass(frozen=True)
    class Fixed:
        wanted: tuple[Visit, ...]

        def visits(self, state):
            return list(self.wanted)

        def waiting(self, state):
            return [visit.record for visit in self.wanted]

    one, two = Visit(record(1), 5, 10), Visit(record(2), 5, 10)
    run = state(record(0), schedule=[Fixed(()), Fixed((one,)), Fixed((two,))])
    assert run.next_visits() == [one]
    assert run.waiting() == [one.record, two.record]
    assert state(record(0), schedule=Fixed(())).next_visits() == []


def test_paths_become_active_before_a_round_is_chosen():
    run = state(record(0))
    run.active = ActiveSet(threshold=2).proposed({0: 2})
    run.next_visits()
    assert run.active.active == (0,)


# Doubted paths --------------------------------------------------------------------------------------------------------


def test_a_path_whose_diagnostics_fail_is_visited_if_it_may_have_mass():
    known, poor, poorer, hopeless = record(0), record(1, -9.0, ess=5, possible=-3.0), record(2, -9.0, ess=5,
                                    possible=-2.0), record(3, -30.0, ess=5, possible=-29.0)  # fmt: skip
    run = state(known, poor, poorer, hopeless)
    assert DoubtedPaths().waiting(run) == [poorer, poor]
    visits = DoubtedPaths().visits(run)
    assert [visit.evaluations for visit in visits] == [30_000, 30_000]
    assert [visit.max_evaluations for visit in visits] == [60_000, 60_000]


def test_doubted_paths_have_a_part_of_the_budget():
    known, poor = record(0, sd=0.2), record(1, -9.0, ess=5, possible=-3.0, evaluations=200)
    assert DoubtedPaths().waiting(state(known, poor, budget=1_000)) == [poor]
    assert DoubtedPaths(budget_share=0.2).waiting(state(known, poor, budget=1_000)) == []
    assert DoubtedPaths().waiting(state(known, poor, budget=500)) == []
    assert DoubtedPaths().waiting(state(record(0, sd=0.01), poor, budget=500)) == [poor], "more than the other error"
    assert DoubtedPaths().waiting(state(record(0), poor, prune_negligible=False)) == []


def test_every_second_round_is_for_paths_with_mass_that_are_under_explored():
    known, poor = record(0), record(1, -9.0, ess=5, possible=-3.0)
    run = state(known, poor)
    assert DoubtedPaths().visits(run)
    run.rounds = 1
    assert DoubtedPaths().visits(run) == []
    known.target.account.evaluations = 30_000
    assert DoubtedPaths().visits(run)


# Refinement -----------------------------------------------------------------------------------------------------------


def test_a_path_with_mass_and_few_evaluations_is_under_explored():
    heavy, exact, light = record(0), record(1, sd=0.0), record(2, -9.0)
    assert Refinement().waiting(state(heavy, exact, light)) == [heavy]
    heavy.target.account.evaluations = 30_000
    assert Refinement().waiting(state(heavy, exact, light)) == []


def test_a_path_with_mass_that_no_second_method_has_confirmed_is_under_explored():
    heavy, light = record(0, evaluations=30_000), record(1, -9.0, evaluations=30_000)
    assert Refinement().waiting(state(heavy, light)) == []
    for each in (heavy, light):
        each.estimate = replace(each.estimate, is_confirmed=False)
    assert Refinement().waiting(state(heavy, light)) == [heavy]
    heavy.path.interpreted = True  # each evaluation is an execution of the program
    assert Refinement().waiting(state(heavy, light)) == []


def test_the_heaviest_of_the_under_explored_paths_come_first_and_as_many_as_can_be_settled():
    records = [record(number, -1.0 - 0.1 * number, evaluations=100) for number in range(12)]
    visits = Refinement().visits(state(*records, allocations=8))
    assert [visit.record.number for visit in visits] == list(range(8))
    assert {(visit.evaluations, visit.max_evaluations) for visit in visits} == {(15_000, 30_000)}
    visits = Refinement().visits(state(*records, budget=23_000))
    assert [visit.record.number for visit in visits] == [0, 1, 2, 3]
    assert {visit.max_evaluations for visit in visits} == {5_450}, "a quarter of what is left"


def test_visits_grow_with_the_evaluations_of_a_path():
    heavy = record(0, evaluations=400_000)
    [visit] = Refinement().visits(state(heavy, tolerance=None))
    assert visit.evaluations == 100_000
    [visit] = Refinement(growth=0.0).visits(state(heavy, tolerance=None))
    assert visit.evaluations < 100_000


def test_a_path_with_a_small_part_in_the_error_is_not_refined():
    heavy, precise = record(0, evaluations=30_000), record(1, sd=0.001, evaluations=30_000)
    assert {visit.record for visit in Refinement().visits(state(heavy, precise, tolerance=None))} == {heavy}
    visits = Refinement(max_ratio=1_000.0).visits(state(heavy, precise, tolerance=None, allocator=Uniform()))
    assert {visit.record for visit in visits} == {heavy, precise}


def test_negligible_paths_are_not_refined():
    heavy, negligible = record(0), record(1, -30.0)
    assert Refinement().candidates(state(heavy, negligible)) == [heavy]
    assert Refinement().candidates(state(heavy, negligible, prune_negligible=False)) == [heavy, negligible]


def test_no_path_gets_more_than_it_needs_to_the_tolerance():
    """An error of 0.01 is half of a tolerance of 0.02; half of that takes four times the 40,000 evaluations."""
    only = record(0, sd=0.01, evaluations=40_000)
    assert Refinement().evaluations_to_tolerance(only, 0.01, 500, state(only, tolerance=0.02)) == 40_000
    assert Refinement().evaluations_to_tolerance(only, 0.01, 500, state(only, tolerance=0.01)) == 160_000
    assert Refinement().evaluations_to_tolerance(only, 0.01, 500, state(only, tolerance=None)) == 1_000_000
    assert Refinement().evaluations_to_tolerance(only, 0.0001, 500, state(only, tolerance=0.02)) == 500


def test_a_round_is_shared_by_the_allocator():
    records = [record(0, evaluations=40_000), record(1, evaluations=40_000)]
    visits = Refinement().visits(state(*records, tolerance=None, allocator=Uniform(), allocations=4))
    assert [(visit.record.number, visit.evaluations) for visit in visits] == [(0, 10_000), (1, 10_000)]


# A rule of the user's -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InTurn:
    """Visits every path that is not exact once in each round, the first visits as well."""

    evaluations: int = 2_000

    def visits(self, state):
        return [Visit(each, self.evaluations, 2 * self.evaluations) for each in state.table if each.error > 0]

    def waiting(self, state):
        return [each for each in state.table if not each.visits]


def test_a_rule_may_own_the_first_visits():
    def program():
        scale = 1.0 if ab.sample("wide", dist.Bernoulli(0.5)) else 0.1
        ab.observe("y", dist.Normal(disguised(ab.sample("x", dist.Normal(0.0, 1.0))), scale), 1.0)

    posterior = ab.infer(program, engine=ab.DCC(schedule=InTurn()), budget=80_000, tolerance=None)
    exact = np.logaddexp(*(np.log(0.5) + dist.Normal(0.0, np.sqrt(1 + scale**2)).log_prob(1.0) for scale in (1.0, 0.1)))
    assert abs(posterior.log_evidence - exact) < 4 * posterior.log_evidence_sd < 0.3  # not confirmed
    assert posterior.paths["visits"].nunique() == 1


def test_the_default_schedule():
    assert ab.DCC().schedule == (FirstVisits(), DoubtedPaths(), Refinement())
    assert "schedule" not in repr(ab.DCC())
    assert "schedule=(InTurn(evaluations=5),)" in repr(ab.DCC(schedule=InTurn(5)))
    with pytest.raises(ValueError, match=r"^schedule must be a rule with visits and waiting, or several, .*; got \["):
        ab.DCC(schedule=[InTurn(), 3])
