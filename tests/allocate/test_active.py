"""The total and the active set of paths."""

import pickle

import numpy as np
import pytest

from anabranch.allocate import ActiveSet


def rng(seed=0):
    return np.random.default_rng(seed)


def test_paths_enter_at_the_threshold():
    paths = ActiveSet(threshold=3, visit=0.0).proposed({"a": 3, "b": 2}).advance({}, rng())
    assert (paths.active, paths.inactive) == (("a",), ("b",))
    paths = paths.proposed({"b": 1}).advance({}, rng())
    assert paths.active == ("a", "b")


def test_counts_add_up_and_a_count_of_zero_makes_a_path_known():
    paths = ActiveSet().proposed({"a": 1}).proposed({"a": 2, "b": 0})
    assert paths.counts == {"a": 3, "b": 0}
    assert paths.advance({}, rng()).active == ("a",)


def test_the_threshold_grows_with_the_iteration():
    paths = ActiveSet(threshold=2, growth=0.5, visit=0.0)
    assert [paths.required, paths.advance({}, rng()).advance({}, rng()).required] == [2, 4]
    late = paths.advance({}, rng()).proposed({"a": 3}).advance({}, rng())
    assert late.active == ()
    assert late.proposed({"a": 2}).advance({}, rng()).active == ("a",)


def test_the_least_evidence_leaves_for_a_new_path():
    paths = ActiveSet(max_active=3, visit=0.0).proposed({"a": 1, "b": 1, "c": 1}).advance({}, rng())
    evidence = {"a": -9000.0, "b": -np.inf, "c": 4.0}
    paths = paths.proposed({"d": 1}).advance(evidence, rng())
    assert paths.active == ("a", "c", "d")
    assert paths.inactive == ("b",)


def test_a_path_that_left_must_be_proposed_anew():
    paths = ActiveSet(threshold=2, max_active=1, visit=0.0).proposed({"a": 9}).advance({}, rng())
    paths = paths.proposed({"b": 2}).advance({"a": 1.0}, rng())
    assert paths.active == ("b",)
    again = paths.advance({"a": 1.0, "b": -5.0}, rng())
    assert again.active == ("b",)
    assert again.proposed({"a": 2}).advance({"a": 1.0, "b": -5.0}, rng()).active == ("a",)


def test_paths_without_an_estimate_stay_for_their_chance():
    paths = ActiveSet(max_active=2, visit=0.0).proposed({"a": 5, "b": 4, "c": 3}).advance({}, rng())
    assert paths.active == ("a", "b")
    assert paths.advance({}, rng()).active == ("a", "b")
    assert paths.advance({"a": 100.0}, rng()).active == ("b", "c")


def test_the_bound_holds_and_the_most_proposed_enter_first():
    paths = ActiveSet(max_active=4, visit=0.0).proposed({k: k for k in range(1, 30)}).advance({}, rng())
    assert paths.active == (29, 28, 27, 26)
    for _ in range(5):
        paths = paths.advance({k: float(-k) for k in range(1, 30)}, rng())
        assert len(paths.active) == 4


def test_now_and_then_an_inactive_path_is_visited():
    paths = ActiveSet(threshold=10, visit=0.3).proposed({"a": 10, "b": 1, "c": 1})
    generator, visitors = rng(), []
    for _ in range(2000):
        paths = paths.advance({}, generator)
        visitors.append(paths.visitor)
        assert paths.active == ("a",)
        assert paths.chosen == (("a",) if paths.visitor is None else ("a", paths.visitor))
    shares = [visitors.count(key) / 2000 for key in (None, "b", "c")]
    np.testing.assert_allclose(shares, [0.7, 0.15, 0.15], atol=0.04)


def test_without_inactive_paths_there_is_no_visitor():
    assert ActiveSet(visit=1.0).proposed({"a": 1}).advance({}, rng()).visitor is None
    assert ActiveSet(visit=1.0).advance({}, rng()).chosen == ()


def test_it_is_plain_data():
    paths = ActiveSet(threshold=2, visit=0.5).proposed({("x", 1): 2, "y": 1})
    before = pickle.dumps(paths)
    after = paths.advance({}, rng())
    assert pickle.dumps(paths) == before
    assert pickle.loads(pickle.dumps(after)) == after
    assert paths.advance({}, rng()) == after


@pytest.mark.parametrize("settings", [{"threshold": 0}, {"growth": -0.1}, {"max_active": 0}, {"visit": 1.1}])
def test_settings_are_checked(settings):
    [name] = settings
    with pytest.raises(ValueError, match=name):
        ActiveSet(**settings)
