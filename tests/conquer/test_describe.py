"""What is said of the discrete variables of a path, word by word."""

from __future__ import annotations

import re
from textwrap import dedent

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch.conquer import Elimination
from elimination_cases import factorial, mixture, nested_plates, several_sequences, tree


def text_of(program, *args, elimination: Elimination | None = Elimination(), **kwargs) -> str:  # noqa: B008
    (path,) = ab.find_paths(program, *args, executions=20, **kwargs).paths
    return ab.describe(path, elimination)


def is_text(found: str, expected: str) -> bool:
    """Whether the texts are the same, but for the size of the tables, which depends on NumPyro's formulas."""
    return re.sub(r"[\d,]+ numbers, [\d.]+ KiB$", "#", found, flags=re.MULTILINE) == dedent(expected).strip()


def hidden_markov(y, states):
    means = ab.sample("means", dist.Normal(0.0, 3.0).expand([states]).to_event(1))
    rows = ab.sample("rows", dist.Dirichlet(jnp.ones(states)).expand([states]).to_event(1))
    z = 0
    for t in range(len(y)):
        z = ab.sample(f"z{t}", dist.Categorical(rows[z]))
        ab.observe(f"y{t}", dist.Normal(means[z], 1.0), y[t])


def test_a_chain():
    assert is_text(
        text_of(hidden_markov, np.zeros(300), 3),
        """
        always: 300 of 300 discrete variables summed out, in this order:
          z0 … z299, along a chain: 3 values each
          largest factor: 2 variables, 9 numbers
          terms of a point: at most 9 evaluations of the program's graph
          tables of a point: #
          kept: none
        """,
    )


def test_a_plate():
    assert is_text(
        text_of(mixture, np.linspace(-2.0, 2.0, 100)),
        """
        always: 100 of 100 discrete variables summed out, in this order:
          z[0] … z[99], each alone: 3 values each
          largest factor: 1 variable, 3 numbers
          terms of a point: at most 3 evaluations of the program's graph
          tables of a point: #
          kept: none
        """,
    )


@pytest.mark.parametrize(
    ("program", "line"),
    [
        (nested_plates, "state[0, 0] … state[2, 1], kind[0, 0] … kind[2, 0], along 3 chains: 2 values each"),
        (tree, "leaf00 … leaf11, child0, child1, root, along a tree: 3 values each"),
        (factorial, "b0 … b3, a0 … a3, with factors of up to 3 variables: 2 or 3 values each"),
    ],
)
def test_the_order(program, line):
    assert text_of(program).splitlines()[1] == f"  {line}"


def test_decision_sequences_have_an_order_each():
    _, first, second, *_ = text_of(several_sequences, split={"z": False}).splitlines()
    assert first == "  decision sequence 1 of 2: z[0] … z[2], with factors of up to 3 variables: 2 values each"
    assert second.startswith("  decision sequence 2 of 2: ")


def some_kept():
    n, k = ab.sample("n", dist.DiscreteUniform(1, 4)), ab.sample("k", dist.Poisson(2.0))
    b = ab.sample("b", dist.Binomial(n, 0.3))
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    z = ab.sample("z", dist.Bernoulli(0.5).expand([12]).to_event(1))
    ab.observe("y", dist.Normal(x + k + b + jnp.all(z == 1), 1.0), 0.0)


ALL_TABLES = "33,554,432 in all tables, or 32,768 in those of 4 variables or fewer"


def test_what_is_kept_and_why():
    assert is_text(
        text_of(some_kept, elimination=Elimination(max_factor=2**6, max_numbers=2**25)),
        f"""
        always: 7 of 15 discrete variables summed out, in this order:
          n, alone: 4 values
          z[6] … z[11], with factors of up to 6 variables: 2 values each
          largest factor: 6 variables, 64 numbers
          terms of a point: at most 128 evaluations of the program's graph
          tables of a point: #
          kept, since a window with nearly all mass would be too wide (10,000 values, or the tables too large): k, b
          kept, since too many interact (more than 64 numbers in a factor, {ALL_TABLES}): z[0] … z[5]
        """,
    )
    assert is_text(
        text_of(some_kept, elimination=Elimination(max_factor=1, max_numbers=2**25)),
        f"""
        always: none of 15 discrete variables summed out.
          kept, since a window with nearly all mass would be too wide (10,000 values, or the tables too large): k, b
          kept, since too many interact (more than 1 numbers in a factor, {ALL_TABLES}): n, z[0] … z[11]
        """,
    )


def test_windows():
    def program():
        ab.observe("y", dist.Normal(ab.sample("k", dist.Poisson(2.0)), 1.0), ab.sample("x", dist.Normal(3.0, 1.0)))

    def nothing_observed():
        ab.sample("k", dist.Poisson(2.0))

    line = text_of(program).splitlines()[1]
    assert re.fullmatch(r"  k, alone: \d+ values, as many as have nearly all mass", line)
    assert text_of(nothing_observed).splitlines() == [
        "always: none of 1 discrete variables summed out.",
        "  kept, since nothing is observed, and prior draws are exact: k",
    ]


def test_nothing_is_summed_out():
    def real():
        ab.sample("x", dist.Normal(0.0, 1.0))

    def coins():
        ab.sample("z", dist.Bernoulli(0.5).expand([5]).to_event(1))

    def outside_jax():
        x = float(ab.sample("x", dist.Normal(0.0, 1.0)))
        ab.observe("y", dist.Normal(x * ab.sample("z", dist.Bernoulli(0.5)), 1.0), 0.0)

    assert text_of(real) == "always: there are no discrete variables."
    assert text_of(coins) == (
        "always: none of 5 discrete variables summed out: the path has 32 values, evaluated one by one."
    )
    assert text_of(coins, elimination=None) == "always: none of 5 discrete variables summed out."
    outside = text_of(outside_jax, split={"z": False})
    assert outside.endswith("none of 1 discrete variables summed out: the interpreter runs the path.")


def test_many_names_are_cut():
    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        for name in "abcdefghijkl":
            ab.observe(f"y{name}", dist.Normal(x * ab.sample(name, dist.Bernoulli(0.5)), 1.0), 0.0)

    lines = text_of(program).splitlines()
    assert lines[1:13] == [f"  {name}, alone: 2 values" for name in "abcdefghijkl"]
    joint = text_of(program, elimination=Elimination(max_factor=1, max_numbers=2**25)).splitlines()[1]
    assert joint.endswith(": a, b, c, d, e, f, g, and 5 more")


def test_a_posterior_says_what_was_done_and_how_many_terms_a_point_has(tmp_path):
    def program(y):
        n = int(ab.sample("K", dist.DiscreteUniform(1, 2)))
        z = ab.sample("z", dist.Categorical(jnp.ones(n) / n).expand([len(y)]).to_event(1))
        ab.observe("y", dist.Normal(3.0 * z, 1.0), y)

    y = np.linspace(0.0, 4.0, 30)
    posterior = ab.infer(program, y, seed=0)
    assert dict(zip(posterior.paths["path"], posterior.paths["terms"], strict=True)) == {"K = 1": 1, "K = 2": 2}
    expected = """
        K = 2: 30 of 30 discrete variables summed out, in this order:
          z[0] … z[29], each alone: 2 values each
          largest factor: 1 variable, 2 numbers
          terms of a point: at most 2 evaluations of the program's graph
          tables of a point: #
          kept: none
        """
    assert is_text(posterior.describe(), expected)
    assert posterior.describe("K = 1").startswith("K = 1: none of 30 discrete variables summed out: the path has 1 ")
    posterior.save(tmp_path / "run")
    loaded = ab.load(tmp_path / "run", program, y)
    assert is_text(loaded.describe("K = 2"), expected)
    assert loaded.paths["terms"].tolist() == posterior.paths["terms"].tolist()
    with pytest.raises(ab.errors.UnknownName, match="'K = 3'"):
        posterior.describe("K = 3")
    without = ab.infer(program, y[:5], seed=0, budget=2_000, engine=ab.engines.ImportanceSampling())
    assert without.describe().endswith("none of 5 discrete variables summed out.")
    assert without.paths["terms"].tolist() == [1, 1]
