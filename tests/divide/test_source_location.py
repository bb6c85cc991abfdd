"""What a decision is called: the words that stand in the program, and their opposite."""

import jax.numpy as jnp
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch.divide import source_location

# Each of these asks one thing of `x`, which is between -1 and 1: the function, and what the answer is called.


def compare(x):
    if x > -2:
        return 1


def compare_false(x):
    if x > 2:
        return 1


def name(x):
    inside = x > -2
    if inside:
        return 1


def name_false(x):
    outside = x > 2
    if outside:
        return 1


def above(x):
    return x > -2


def call(x):
    if above(x):
        return 1


def negation(x):
    if not above(x):
        return 1


def negated_compare(x):
    if not x > 2:
        return 1


def method(x):
    if (x > -2).any():
        return 1


def both(x):
    if (x > -2) & (x < 2):
        return 1


def subscript(x):
    answers = [x > -2]
    if answers[0]:
        return 1


def ternary(x):
    inside = x > -2
    return 1 if inside else 2


def loop(x):
    outside = x > 2
    while outside:
        x = x + 1


def loop_until(x):
    while not x < 2:
        x = x - 1


def long_condition(x):
    if jnp.maximum(
        x,
        0.5,
    ) < 2:  # fmt: skip
        return 1


def whole_part(x):
    return int(jnp.floor(x + 1.5) * 0 + 3)


def in_a_call(x):
    return max(x, 5.0)


def Größe(x):
    π = 3.14
    if x < π:
        return 1


QUESTIONS = [
    (compare, "x > -2"),
    (compare_false, "x <= 2"),
    (name, "inside"),
    (name_false, "not outside"),
    (call, "above(x)"),
    (negation, "above(x)"),
    (negated_compare, "x <= 2"),
    (method, "(x > -2).any()"),
    (both, "(x > -2) & (x < 2)"),
    (subscript, "answers[0]"),
    (ternary, "inside"),
    (loop, "not outside"),
    (loop_until, "x < 2"),
    (long_condition, "jnp.maximum( x, 0.5, ) < 2"),
    (whole_part, "int(jnp.floor(x + 1.5) * 0 + 3): 3"),
    (in_a_call, "max(x, 5.0)"),
    (Größe, "x < π"),
]


@pytest.mark.parametrize(("asks", "text"), QUESTIONS, ids=[asks.__name__ for asks, _ in QUESTIONS])
def test_decision_in_words(asks, text):
    def program():
        asks(ab.sample("x", dist.Uniform(-1.0, 1.0)))

    [path] = ab.find_paths(program, executions=10).paths
    [(decision,)] = path.decisions
    words, _, place = decision.rpartition(" (")
    assert words == text
    first = asks.__code__.co_firstlineno
    line = int(place.removeprefix("test_source_location.py:").removesuffix(")"))
    assert first < line <= first + 6


@pytest.mark.parametrize(
    ("text", "opposite"),
    [
        ("x > 0", "x <= 0"),
        ("x >= 0", "x < 0"),
        ("x < y + 1", "x >= y + 1"),
        ("x <= f(y)", "x > f(y)"),
        ("x == 1", "x != 1"),
        ("x != 1", "x == 1"),
        ("x in xs", "x not in xs"),
        ("x not in xs", "x in xs"),
        ("x is None", "x is not None"),
        ("x is not None", "x is None"),
        ("not inside", "inside"),
        ("inside", "not inside"),
        ("f(x)", "not f(x)"),
        ("xs[0]", "not xs[0]"),
        ("self.alive", "not self.alive"),
        ("a & b", "not (a & b)"),
        ("a and b", "not (a and b)"),
        ("0 < x < 1", "not (0 < x < 1)"),
        ("question at line 3", "not (question at line 3)"),
    ],
)
def test_negated(text, opposite):
    assert source_location.negated(text) == opposite


def test_where_of_nothing():
    assert source_location.where(None) == "<unknown>"
    assert source_location.question(None) == "?"


def test_source_that_is_not_to_be_had():
    space = {"ab": ab, "dist": dist}
    exec(compile("def program():\n  if ab.sample('x', dist.Normal(0., 1.)) > -9: pass", "<typed>", "exec"), space)
    [path] = ab.find_paths(space["program"], executions=10).paths
    assert path.decisions == (("question at line 2 (<typed>:2)",),)


def test_the_frame_is_the_program_s():
    frame = source_location.user_frame()
    assert frame.f_code.co_name == "test_the_frame_is_the_program_s"
    assert source_location.where(frame).startswith("test_source_location.py:")
    assert source_location.belongs_to_program(frame)


def test_the_frame_of_an_error():
    with pytest.raises(TypeError) as caught:
        jnp.zeros(3) + jnp.zeros(4)
    assert source_location.frame_of(caught.value).f_code.co_name == "test_the_frame_of_an_error"
