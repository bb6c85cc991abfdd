"""Every setting is what it must be, or refused in one sentence that names it."""

import inspect
import math
from dataclasses import fields
from fractions import Fraction

import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given
from hypothesis import strategies as st

import anabranch as ab
from anabranch import allocate, conquer, engines, search
from anabranch.allocate import ActiveSet, FirstVisits
from anabranch.conquer import HMC, SMC, ModeMixture
from anabranch.conquer.student import StudentMixture
from anabranch.engines import Move
from anabranch.errors import BadSetting
from anabranch.limits import Limits
from anabranch.settings import finite, positive, share, site_choice, whole


def guide(*data):
    ab.sample("x", dist.Normal(0.0, 1.0))


def involution(trace, aux):
    return trace, aux


MOVE = Move(guide, involution)
KINDS = [
    Limits,
    ab.DCC,
    ActiveSet,
    Move,
    *(getattr(module, name) for module in (allocate, conquer, engines, search) for name in module.__all__),
]
SETTINGS = sorted({kind for kind in KINDS if inspect.isclass(kind) and "__post_init__" in dir(kind)}, key=str)
NEEDED = {"guide": guide, "moves": [MOVE], "proposal": guide, "involution": involution, "choice": {}}
NASTY = [
    None, True, False, np.True_, "", "5", "no", b"1", -5, -1, 0, 1, 2, 3.0, 0.5, -0.5, 1e-300, 5e-324, 1e300, 10**400,
    math.nan, math.inf, -math.inf, 1j, np.float32(0.5), np.int64(7), np.array(3), np.array([1.0, np.nan]), [], [1], (),
    {}, {"x": "no"}, {1: True}, object(), int, SMC, SMC(), guide, Fraction(1, 3), range(3),
]  # fmt: skip


def needed(kind):
    return {
        name: NEEDED[name]
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.default is inspect.Parameter.empty
    }


CASES = [(kind, field.name) for kind in SETTINGS for field in fields(kind)]


def test_the_cases_are_the_settings():
    assert {"DCC", "Limits", "Auto", "HMC", "NUTS", "UCB", "IPMCMC", "SVI", "Move", "ActiveSet", "Enumerate"} <= {
        kind.__name__ for kind in SETTINGS
    }


@pytest.mark.parametrize(("kind", "name"), CASES, ids=lambda part: getattr(part, "__name__", part))
def test_a_field_is_valid_or_refused_by_its_name(kind, name):
    for value in NASTY:
        try:
            made = kind(**needed(kind) | {name: value})
        except BadSetting as error:
            assert name in str(error)  # noqa: PT017
            assert " must be " in str(error)  # noqa: PT017
            assert "; got " in str(error)  # noqa: PT017
        else:
            is_plain(kind, name, getattr(made, name), value)


def is_plain(kind, name, kept, given):
    """What was accepted is of the kind that the field is annotated with, whatever it was given as."""
    annotated = next(field.type for field in fields(kind) if field.name == name)
    wanted = annotated.__name__ if isinstance(annotated, type) else str(annotated)
    if kept is None:
        assert "None" in wanted or "Optional" in wanted or name == "visitor"
    elif wanted.startswith("int"):
        assert type(kept) is int
    elif wanted.startswith("float"):
        assert type(kept) is float
        assert math.isfinite(kept)
    elif wanted.startswith("bool"):
        assert type(kept) is bool
    elif wanted.startswith("str"):
        assert type(kept) is str
    if isinstance(kept, int | float) and not isinstance(kept, bool):
        assert not isinstance(given, bool | str)


TEXTS = st.text(st.sampled_from("0123456789.e+-_ jnaif"), max_size=9)
"""What looks like a number, and need not be one."""


@given(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS, st.complex_numbers()))
@pytest.mark.parametrize(
    "rule", [whole(1), finite(0), positive(), share(), share(zero=False, one=False)], ids=lambda rule: rule.words
)
def test_rules_give_numbers_or_refuse(rule, value):
    try:
        number = rule("it", value)
    except BadSetting as error:
        assert str(error).startswith("it must be a")  # noqa: PT017
    else:
        assert number == pytest.approx(value, abs=1e-99) or abs(value) > 1e99
        assert rule("it", number) == number


# The cases that used to end in errors from inside ---------------------------------------------------------------------


def coin(heads):
    fair = ab.sample("fair", dist.Bernoulli(0.5))
    p = 0.5 if fair else ab.sample("p", dist.Beta(1.0, 1.0))
    ab.observe("heads", dist.Binomial(10, p), heads)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seconds", "5"), ("seconds", True), ("tolerance", "0.1"), ("tolerance", math.inf), ("max_sites", None),
        ("max_sites", True), ("max_sites", 2.0), ("max_sites", "9"), ("split", 5), ("split", None), ("split", [3]),
        ("split", {"fair": "no"}), ("split", {"fair": None}), ("workers", True), ("workers", "2"), ("progress", "no"),
        ("seed", "0"), ("budget", "1"), ("engine", object()),
    ],
)  # fmt: skip
def test_infer_refuses(name, value):
    with pytest.raises(BadSetting, match=f"^{name} must be .*; got "):
        ab.infer(coin, 9, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("executions", "a"), ("executions", True), ("active", 3), ("evaluations_per_first_visit", -5),
        ("evaluations_per_first_visit", 0.5),
        ("prune_negligible", "no"), ("systematic", 1), ("elimination", 64),
        ("evaluations_per_visit", 1e3), ("schedule", ()), ("schedule", FirstVisits), ("stopping", None),
    ],
)  # fmt: skip
def test_dcc_refuses(name, value):
    with pytest.raises(BadSetting, match=f"^{name} must be .*; got "):
        ab.DCC(**{name: value})


@pytest.mark.parametrize("name", inspect.signature(ab.DCC.paper).parameters)
@pytest.mark.parametrize("value", ["a", -1, math.nan, True, [3]], ids=str)
def test_the_papers_settings_are_refused_by_the_papers_names(name, value):
    with pytest.raises(BadSetting, match=f"^{name} must be "):
        ab.DCC.paper(**{name: value})


@pytest.mark.parametrize("name", ["executions", "seed", "max_sites"])
@pytest.mark.parametrize("value", ["1", True, 1.5, None, -1], ids=str)
def test_find_paths_refuses(name, value):
    with pytest.raises(BadSetting, match=f"^{name} must be a whole number, at least "):
        ab.find_paths(coin, 9, **{name: value})


@pytest.fixture(scope="module")
def posterior():
    return ab.infer(coin, 9, seed=0, tolerance=0.05)


@pytest.mark.parametrize("value", ["1", True, 1.5, None, -1, math.nan], ids=str)
def test_a_posterior_refuses(posterior, value):
    def first(draw):
        return draw["fair"]

    for ask in (posterior.draws, posterior.replicate, posterior.log_likelihood):
        with pytest.raises(BadSetting, match=r"^n must be a whole number, at least 1; got "):
            ask(value)
        with pytest.raises(BadSetting, match=r"^seed must be a whole number, at least 0; got "):
            ask(3, seed=value)
    for name in ("n", "seed"):
        with pytest.raises(BadSetting, match=f"^{name} must be "):
            posterior.predict(first, **{name: value})
    with pytest.raises(BadSetting, match=r"^max_draws must be "):
        posterior.expectation(first, max_draws=value)
    with pytest.raises(BadSetting, match=r"^paths must be "):
        posterior.stacking(value)


def test_numbers_of_numpy_are_numbers(posterior):
    assert len(posterior.draws(np.int32(3), seed=np.uint8(1))) == 3
    again = ab.infer(coin, 9, seed=np.int64(0), tolerance=np.float32(0.05), budget=np.int64(10**6))
    assert again.log_evidence == posterior.log_evidence


@pytest.mark.parametrize("tolerance", [1e-300, 5e-324])
def test_a_tiny_tolerance_is_never_met(tolerance):
    def place(y):
        ab.observe("y", dist.Cauchy(ab.sample("x", dist.Normal(0.0, 1.0)), 1.0), y)

    posterior = ab.infer(place, 2.0, seed=0, tolerance=tolerance, budget=20_000)
    assert posterior.run.stopped == "The budget of 20,000 evaluations is spent."


def test_no_end_of_time_is_no_limit():
    assert Limits(seconds=math.inf) == Limits(seconds=None)


def test_the_forms_of_split():
    assert site_choice()("split", "z") == site_choice()("split", ["z"]) == site_choice()("split", {"z": np.True_})


def test_what_was_given_is_shown_in_few_words():
    with pytest.raises(BadSetting, match=r"got the class SMC: write SMC\(\)\.$"):
        ab.DCC(strategy=SMC)
    for value in ("x" * 10**6, 10**5000):
        with pytest.raises(BadSetting) as caught:
            ab.DCC(allocations=value)
        assert len(str(caught.value)) < 200


def test_arrays_and_parts_of_strategies():
    assert HMC(initial=[[1, 2]]).initial.dtype == np.float64
    mixture = StudentMixture(np.zeros((1, 3)), np.eye(3)[None], np.ones(1), np.array([5.0]))
    assert SMC(proposal=mixture).proposal is mixture
    with pytest.raises(BadSetting, match=r"^modes must be a strategy ModeMixture\(\); got SMC"):
        conquer.Auto(modes=SMC())
    assert conquer.Auto(modes=ModeMixture(starts=8)).modes.starts == 8
