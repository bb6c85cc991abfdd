"""The error of an estimate before a second method was asked."""

from dataclasses import replace

import pytest

from anabranch.conquer import Estimate
from anabranch.conquer.second_opinion import unconfirmed


def said(log_evidence, sd, ess=1_000.0, k=0.3):
    nothing = Estimate.nothing(1, 5, "a method")
    return replace(nothing, log_evidence=log_evidence, log_evidence_sd=sd, ess=ess, pareto_k=k)


def test_before_the_second_opinion_a_heavy_tail_makes_the_error_larger():
    assert unconfirmed(said(-3.0, 0.1), None, 0.05).log_evidence_sd == pytest.approx(0.1)
    assert unconfirmed(said(-3.0, 0.01), None, 0.05).log_evidence_sd == pytest.approx(0.05)
    assert unconfirmed(said(-3.0, 0.1, ess=100.0, k=0.7), None, 0.05).log_evidence_sd == pytest.approx(0.1 * 100**0.1)


@pytest.mark.parametrize(
    ("possible", "is_rough", "expected"),
    [
        (-1.0, True, -1.0),  # more than the weights have found
        (-9.0, True, 4.0),  # not come to what they have found: what they may have missed themselves
        (-9.0, False, -3.0),  # a finished population, which finds no more
    ],
)
def test_tempering_under_way_says_what_there_may_be_once_it_has_come_to_the_mass(possible, is_rough, expected):
    poor = replace(said(-3.0, 0.4, ess=5.0, k=0.9), log_possible=4.0)
    by_tempering = replace(said(-12.0, 1.0), log_possible=possible, is_rough=is_rough)
    estimate = unconfirmed(poor, by_tempering, 0.05)
    assert estimate.log_possible == expected
    assert not estimate.is_confirmed
