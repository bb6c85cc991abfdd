"""The same seed gives the same bits, whatever the number of threads; another seed gives others."""

from functools import cache

import numpy as np
import pytest

import anabranch as ab
from bits import bits
from exact import named

CASES = ("figure_two", "unknown_components", "barrier")
BUDGET = 60_000
"""With which paths are visited several times."""


def answer(name, seed=0, workers=None, budget=BUDGET):
    case = named(name)
    return bits(ab.infer(case.program, *case.args, seed=seed, workers=workers, budget=budget))


first = cache(answer)
"""Of a run that several tests compare with one of their own."""


@pytest.mark.one_in(3)
@pytest.mark.parametrize("budget", [BUDGET, pytest.param(400_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_the_number_of_threads_does_not_matter(name, budget):
    assert answer(name, workers=1, budget=budget) == answer(name, workers=4, budget=budget)


def test_other_seeds_give_other_answers():
    answers = [first("figure_two"), answer("figure_two", seed=1)]
    assert len({each["log_evidence"] for each in answers}) == 2
    assert len({each["points"][0] for each in answers}) == 2


def test_the_global_random_state_is_neither_used_nor_changed():
    np.random.seed(1)  # noqa: NPY002
    one = first("figure_two")
    np.random.seed(2)  # noqa: NPY002
    before = np.random.get_state()[1].tobytes()  # noqa: NPY002
    assert answer("figure_two") == one
    assert np.random.get_state()[1].tobytes() == before  # noqa: NPY002
