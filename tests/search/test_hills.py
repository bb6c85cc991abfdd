"""What climbs tell of hills that none of them has found."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from anabranch.search.hills import Hills

NO_STEPS = [[]], np.zeros((1, 0), bool)


def path(number: int, values: dict[str, int], log_evidence: float = -50.0) -> SimpleNamespace:
    """A path with an estimate, as far as it matters for hills; it is itself and no other."""
    fixed = {name: np.asarray(value) for name, value in values.items()}
    record = Record()
    record.__dict__.update(number=number, path=SimpleNamespace(fixed=fixed), log_evidence=log_evidence)
    return record


class Record(SimpleNamespace):
    """Hashed by identity, as records are."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


LEFT = path(0, {"root": 0, "a": 0, "b": 0, "c": 0, "d": 0}, -1.0)
RIGHT = path(1, {"root": 1, "a": 1, "b": 1, "c": 1, "d": 1}, -2.0)
LOW = path(2, {"root": 2, "e": 5}, -9.0)
SHARES = np.exp([-1.0, -2.0, -9.0]) / np.exp([-1.0, -2.0, -9.0]).sum()


ENDS = [((5, 4, 3), 0.5 / 13), ((5, 1, 3), SHARES[1]), ((9, 1, 1), SHARES[1:].sum()), ((1, 6, 6), SHARES[0]),
        ((30, 30, 1), 0.5 / 62)]  # fmt: skip


@pytest.mark.parametrize(("times", "missing"), ENDS)
def test_hills_found_once_stand_for_those_not_found(times, missing):
    ends = [top for top, number in zip((LEFT, RIGHT, LOW), times, strict=True) for _ in range(number)]
    assert Hills.of(ends[::-1]).missing_share(*NO_STEPS, 0.5) == pytest.approx(missing, rel=1e-9)


def test_low_tops_do_not_count():
    hills = Hills.of([LEFT, LEFT, path(3, {"root": 3}, -12.0)])
    assert hills.tops == [LEFT]
    assert hills.missing_share(*NO_STEPS, 0.5) == 0.5 / 4


def test_the_nearest_top_differs_in_the_fewest_decisions():
    hills = Hills.of([LEFT, RIGHT, LOW])
    assert hills.nearest(path(4, {"root": 1, "a": 0, "b": 0, "c": 0, "d": 0})) == 0
    assert hills.nearest(path(5, {"root": 0, "a": 1, "b": 1, "c": 1, "d": 1})) == 1
    assert hills.nearest(path(6, {"root": 2, "e": 0})) == 2


@pytest.mark.parametrize(
    ("walkers", "jump", "missing"), [(3, False, 0.5 / 6), (2, False, SHARES[1]), (3, True, SHARES[1])]
)
def test_tops_between_which_walkers_go_are_on_one_hill(walkers, jump, missing):
    """The second top was found once, and is as good as found often if walkers come there from the first."""
    hills = Hills.of([LEFT] * 2 + [RIGHT] + [LOW] * 2)
    between = path(7, {"root": 1, "a": 1, "b": 0, "c": 0, "z": 0})  # near none
    steps = [[LEFT] * 4, [between] * walkers + [LEFT] * (4 - walkers), [RIGHT] * walkers + [LEFT] * (4 - walkers)]
    jumps = np.zeros((3, 4), bool)
    jumps[1] = jump
    assert hills.missing_share(steps, jumps, 0.5) == pytest.approx(missing, rel=1e-9)
