"""A run that goes on: from where it was, to the truth, and without doing anything again."""

import pickle

import cloudpickle
import numpy as np
import pytest

import anabranch as ab
import solved
from anabranch import errors
from anabranch.divide import divide
from anabranch.limits import Limits
from anabranch.progress import Progress
from bits import bits


def checked(posterior):
    assert abs(posterior.log_evidence - solved.log_evidence()) < 4 * posterior.log_evidence_sd < 0.2
    for value, p in posterior.probability("model").items():
        assert abs(p - solved.weights()[value]) < 4 * posterior.probability("model").errors[value] + 1e-9


def test_a_run_goes_on_to_smaller_errors_and_runs_no_python_again():
    runs = []

    def program(y):
        runs.append(1)
        return solved.choice(y)

    first = ab.infer(program, solved.Y, budget=8_000, tolerance=None)
    text, rows, so_far = repr(first), len(first.history), len(runs)
    second = first.more(budget=30_000, tolerance=None)
    assert len(runs) == so_far
    assert first.run.evaluations + 0.9 * 30_000 < second.run.evaluations <= 1.02 * (first.run.evaluations + 30_000)
    assert second.run.seconds > first.run.seconds
    assert second.log_evidence_sd < first.log_evidence_sd
    assert (repr(first), len(first.history)) == (text, rows)
    assert second.history.iloc[:rows].equals(first.history)
    assert len(second.history) > rows
    checked(first)
    checked(second)
    third = second.more(budget=10_000)
    assert "below 0.005" in third.run.stopped
    assert third.log_evidence_sd < 0.005


def test_a_little_more_is_not_nothing():
    """The part of a budget that is not worth a round is a part of what was given last, not of the whole."""
    first = ab.infer(solved.choice, solved.Y, budget=60_000, tolerance=None)
    second = first.more(budget=300, tolerance=None)
    assert first.run.evaluations < second.run.evaluations <= first.run.evaluations + 400
    assert len(second.history) > len(first.history)


class _Interrupts(Progress):
    """Interrupts the run after some rounds."""

    def __init__(self, rounds):
        self.rounds = rounds

    def update(self, status):
        self.rounds -= 1
        if self.rounds == 0:
            raise KeyboardInterrupt


def test_a_run_interrupted_between_rounds_gives_the_numbers_of_one_that_was_not():
    def run(progress):
        return ab.DCC().run(divide(solved.choice, (solved.Y,), {}), Limits(40_000, None, None), 3, 1, progress)

    whole, part = run(Progress()), run(_Interrupts(2))
    assert "interrupted" in part.run.stopped
    assert part.run.evaluations < 0.8 * whole.run.evaluations
    done = part.more(budget=40_000 - part.run.evaluations, tolerance=None, workers=1)
    assert done.log_evidence == whole.log_evidence
    assert done.run.evaluations == whole.run.evaluations
    assert done.history.equals(whole.history)
    np.testing.assert_array_equal(done.draws(50)["mean"], whole.draws(50)["mean"])


class _EndsTheTime(Progress):
    """Lets the time of the run be over after the first round."""

    def __init__(self, limits):
        self.limits = limits

    def update(self, status):
        object.__setattr__(self.limits, "seconds", 1e-9)


def test_a_run_whose_time_was_over_goes_on():
    limits = Limits(40_000, None, None)
    first = ab.DCC().run(divide(solved.choice, (solved.Y,), {}), limits, 3, 1, _EndsTheTime(limits))
    assert "seconds are over" in first.run.stopped
    second = first.more(budget=20_000, tolerance=None)
    assert second.run.evaluations > first.run.evaluations
    checked(second)


def test_the_algorithm_of_the_paper_goes_on_as_one_longer_run(tmp_path):
    def run(budget):
        return ab.infer(solved.choice, solved.Y, engine=ab.DCC.paper(), budget=budget, tolerance=None, seed=2)

    whole, first = run(30_000), run(9_000)
    text = repr(first)
    second = first.more(budget=30_000 - first.run.evaluations, tolerance=None)
    assert bits(second) == bits(whole)
    assert repr(first) == text
    checked(second)
    with pytest.raises(errors.CannotContinue, match="gone on already"):
        first.more()
    second.save(tmp_path / "run")
    with pytest.raises(errors.CannotContinue, match=r"in its process alone. Run infer again"):
        ab.load(tmp_path / "run", solved.choice, solved.Y).more()


def test_what_cannot_go_on_says_so(tmp_path):
    posterior = ab.infer(solved.choice, solved.Y, budget=8_000)
    posterior.save(tmp_path / "run")
    loaded, copy = ab.load(tmp_path / "run"), pickle.loads(cloudpickle.dumps(posterior))
    posterior.more(budget=1_000)
    other = ab.infer(solved.choice, solved.Y, engine=ab.engines.SMC(), budget=2_000)
    remedies = {
        posterior: "gone on already. Call more on the posterior that more returned",
        other: "Run infer again with a larger budget, or with DCC",
        loaded: r"without its program. Load it with .* ab.load\(.*, choice, \*data\).more",
        copy: "Call more on the original",
    }
    for each, remedy in remedies.items():
        with pytest.raises(errors.CannotContinue, match=remedy):
            each.more()
    with pytest.raises(errors.BadSetting, match="budget must be a whole number"):
        posterior.more(budget=0)
