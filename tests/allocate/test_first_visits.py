"""First looks: at which paths, and in which order."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from anabranch.allocate import PathRecord, PathTable
from anabranch.allocate.first_visits import by_promise, is_easy, is_unknown, that_may_matter
from anabranch.conquer.estimate import Estimate


def entry(number, *, prior=-1.0, dim=1, log_evidence=None, best=-np.inf, visits=0, sd=0.1, **more):
    path = SimpleNamespace(signature=number, log_prior_probability=prior, dim=dim)
    estimate = None
    if log_evidence is not None:
        estimate = replace(Estimate.nothing(dim, 10, "test"), log_evidence=log_evidence, log_evidence_sd=sd)
    target = SimpleNamespace(best_likelihood=best, evaluations=0)
    return PathRecord(number, path, 1, target, estimate=estimate, visits=visits, **more)


def ledger(*entries):
    return PathTable({each.path.signature: each for each in entries})


def test_a_path_without_mass_is_tried_again_before_it_is_believed():
    known, empty = entry(0, log_evidence=-3.0, visits=1), entry(1, log_evidence=-np.inf, visits=2)
    assert is_unknown(empty, ledger(known, empty))
    empty.visits = 3
    assert not is_unknown(empty, ledger(known, empty))


def test_while_there_is_no_mass_anywhere_the_search_goes_on():
    empty = entry(0, log_evidence=-np.inf, visits=3)
    assert is_unknown(empty, ledger(empty))
    empty.visits = 30
    assert not is_unknown(empty, ledger(empty))


def test_what_is_known_to_be_nothing_is_not_looked_at_again():
    exact = entry(0, log_evidence=-np.inf, sd=0.0, visits=1)
    assert not is_unknown(exact, ledger(exact))


@pytest.mark.parametrize(("prior", "matters"), [(-50.0, True), (-150.0, False), (-np.inf, True)])
def test_a_prior_too_small_for_the_best_likelihood_seen_rules_a_path_out(prior, matters):
    solved = entry(0, log_evidence=-10.0, prior=0.0, best=-5.0, visits=1)
    fresh = entry(1, prior=prior)
    assert bool(that_may_matter([fresh], ledger(solved, fresh))) == matters


def test_a_strict_judgement_goes_by_mean_likelihoods():
    """The mean likelihood is e^-10: e^-45 of the prior would need one that is e^15 times larger to weigh e^-20."""
    solved = entry(0, log_evidence=-10.0, prior=0.0, best=0.0, visits=1)
    fresh = entry(1, prior=-45.0)
    assert that_may_matter([fresh], ledger(solved, fresh)) == [fresh]
    assert that_may_matter([fresh], ledger(solved, fresh), strictly=True) == []


def test_easy_paths_are_those_of_few_dimensions_or_with_a_part_of_the_prior():
    few = ledger(entry(0))
    assert is_easy(entry(1, dim=8, prior=-30.0), few)
    assert is_easy(entry(1, dim=50, prior=-5.0), few)
    assert not is_easy(entry(1, dim=9, prior=-7.0), few)


def test_of_many_paths_the_easy_ones_are_next_to_the_mass_or_begun():
    many = ledger(*(entry(number) for number in range(200)))
    assert is_easy(entry(0, dim=5, parent=0.5), many)
    assert is_easy(entry(0, dim=50, visits=1), many)
    assert not is_easy(entry(0, dim=5, parent=1e-3), many)
    assert not is_easy(entry(0, dim=50, parent=0.5), many)


def test_the_simplest_and_the_likeliest_take_turns():
    simple = entry(0, dim=1, prior=-9.0, parent=0.5, parent_likelihood=-2.0)
    simpler = entry(1, dim=2, prior=-8.0, parent=0.5, parent_likelihood=-2.0)
    likely = entry(2, dim=9, prior=-1.0, parent=0.5, parent_likelihood=-2.0)
    likelier = entry(3, dim=8, prior=-2.0, parent=0.5, parent_likelihood=-2.0)
    assert [each.number for each in by_promise([likelier, simpler, likely, simple])] == [0, 2, 1, 3]


def test_paths_proposed_from_the_mass_come_before_the_others():
    far, near = entry(0, prior=-1.0), entry(1, prior=-9.0, parent=0.9, parent_likelihood=-2.0)
    assert by_promise([far, near])[0] is near
