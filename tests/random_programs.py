"""Random programs, as small syntax trees with an interpreter, for the property tests.

A tree is made of tuples; `Tree.run` executes it with the statements of NumPyro and Anabranch.
Densities stay moderate and smooth: parameters are bounded functions of what came before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from hypothesis import strategies as st

from anabranch.language import deterministic, factor, observe

NUMBERS = [-1.3, -0.4, 0.2, 0.7, 1.6]


@dataclass(frozen=True)
class Tree:
    """A program. Its sites are named by their place in it, or by how many were met before, whatever they are."""

    body: tuple[Any, ...]
    by_place: bool

    def __call__(self) -> Any:
        return _Run(self.by_place).all(self.body, {})


@dataclass
class _Run:
    """One execution of a tree."""

    by_place: bool
    met: int = 0
    turns: list[int] = field(default_factory=list)

    def name(self, place: int) -> str:
        self.met += 1
        return "_".join(map(str, ["s", place, *self.turns])) if self.by_place else f"s{self.met}"

    def all(self, body: tuple[Any, ...], names: dict[str, Any]) -> dict[str, Any]:
        for statement in body:
            self.one(statement, names)
        return names

    def one(self, statement: tuple[Any, ...], names: dict[str, Any]) -> None:
        match statement:
            case ("site", place, name, family, parameters):
                arguments = [number(p, names) for p in parameters]
                names[name] = numpyro.sample(self.name(place), FAMILIES[family](*arguments))
            case ("assign", name, expression):
                names[name] = number(expression, names)
            case ("if", condition, then, orelse):
                inner = dict(names)
                if holds(condition, names):
                    self.all(then, inner)
                else:
                    self.all(orelse, inner)
                names.update({name: inner[name] for name in names})
            case ("for", name, body):
                inner = dict(names)
                for turn in range(names[name]):
                    self.turns.append(turn)
                    self.all(body, inner)
                    self.turns.pop()
                names.update({name: inner[name] for name in names})
            case ("observe", place, family, expression, value):
                observe(self.name(place), LIKELIHOODS[family](number(expression, names)), value)
            case ("factor", place, expression):
                factor(self.name(place), -jnp.square(jnp.tanh(number(expression, names))))
            case ("deterministic", place, expression):
                deterministic(self.name(place), number(expression, names))
            case _:
                raise AssertionError(statement)


def number(expression: tuple[Any, ...], names: dict[str, Any]) -> Any:
    match expression:
        case ("constant", value):
            return value
        case ("name", name):
            value = names[name]
            return value.sum() if jnp.ndim(value) else value
        case ("element", name, i):
            return names[name][i]
        case ("+", a, b):
            return number(a, names) + number(b, names)
        case ("*", a, b):
            return number(a, names) * jnp.tanh(number(b, names))
        case ("sin", a):
            return jnp.sin(number(a, names))
        case ("choose", a, b, c):
            return jnp.where(number(a, names) > 0.1, number(b, names), number(c, names))
    raise AssertionError(expression)


def holds(condition: tuple[Any, ...], names: dict[str, Any]) -> Any:
    match condition:
        case ("truth", name):
            return names[name]
        case ("equal", name, value):
            return names[name] == value
        case (">", a, b):
            return number(a, names) > number(b, names)
        case ("between", a, low, high):
            return low < number(a, names) < high
        case ("not", a):
            return not holds(a, names)
        case ("and", a, b):
            return holds(a, names) and holds(b, names)
        case ("or", a, b):
            return holds(a, names) or holds(b, names)
        case ("&", a, b):
            return holds(a, names) & holds(b, names)
    raise AssertionError(condition)


def positive(x: Any) -> Any:
    return 0.5 + jax.nn.sigmoid(1.0 * x)


def probability(x: Any) -> Any:
    return 0.2 + 0.6 * jax.nn.sigmoid(1.0 * x)


FAMILIES = {
    "normal": lambda a: dist.Normal(jnp.sin(a), 1.0),
    "scaled": lambda a: dist.Normal(0.0, positive(a)),
    "exponential": lambda a: dist.Exponential(positive(a)),
    "uniform": lambda a: dist.Uniform(jnp.sin(a), jnp.sin(a) + positive(a)),
    "beta": lambda a: dist.Beta(1 + positive(a), 2.0),
    "normals": lambda a: dist.Normal(jnp.sin(a) * jnp.array([1.0, -1.0]), 1.0).to_event(1),
    "exponentials": lambda a: dist.Exponential(positive(a)).expand([2]),
    "simplex": lambda a: dist.Dirichlet(jnp.array([1.5, 1.0, 1.0]) + positive(a)),
    "bernoulli": lambda a: dist.Bernoulli(probability(a)),
    "categorical": lambda a: dist.Categorical(logits=jnp.sin(a) * jnp.array([0.0, 0.5, 1.0])),
    "poisson": lambda a: dist.Poisson(0.5 * positive(a)),
    "discrete_uniform": lambda a: dist.DiscreteUniform(0, 2),
    "bernoullis": lambda a: dist.Bernoulli(probability(a) * jnp.ones(2)).to_event(1),
}
REALS = ["normal", "scaled", "exponential", "uniform", "beta"]
VECTORS = ["normals", "exponentials", "simplex"]
FINITE = ["bernoulli", "categorical", "discrete_uniform"]
WHOLE = [*FINITE, "poisson"]
LIKELIHOODS = {
    "normal": lambda a: dist.Normal(a, 1.0),
    "bernoulli": lambda a: dist.Bernoulli(probability(a)),
    "poisson": lambda a: dist.Poisson(positive(a)),
    "exponential": lambda a: dist.Exponential(positive(a)),
}
OBSERVED = {"normal": NUMBERS, "bernoulli": [0, 1], "poisson": [0, 2, 5], "exponential": [0.2, 1.1]}


@dataclass
class _Scope:
    """The names that may be used at a place of the program under construction."""

    reals: list[str]
    vectors: list[str]
    whole: list[str]
    pairs: list[str]

    def inner(self) -> _Scope:
        return _Scope(list(self.reals), list(self.vectors), list(self.whole), list(self.pairs))


class _Builder:
    def __init__(self, random: Random, finite: bool) -> None:
        self.random, self.finite, self.places = random, finite, 0

    def place(self) -> int:
        self.places += 1
        return self.places

    def choose(self, *options: Any) -> Any:
        return self.random.choice(options)

    def expression(self, scope: _Scope, depth: int = 1) -> tuple[Any, ...]:
        kinds = ["constant"]
        kinds += ["name"] * 3 * bool(scope.reals + scope.whole + scope.vectors)
        kinds += ["element"] * bool(scope.vectors + scope.pairs)
        kinds += ["+", "*", "sin", "choose"] if depth else []
        match self.choose(*kinds):
            case "constant":
                return ("constant", self.choose(*NUMBERS))
            case "name":
                return ("name", self.choose(*scope.reals, *scope.whole, *scope.vectors))
            case "element":
                return ("element", self.choose(*scope.vectors, *scope.pairs), self.choose(0, 1))
            case "sin":
                return ("sin", self.expression(scope, depth - 1))
            case "choose":
                return ("choose", *(self.expression(scope, depth - 1) for _ in range(3)))
            case operator:
                return (operator, self.expression(scope, depth - 1), self.expression(scope, depth - 1))

    def condition(self, scope: _Scope, depth: int = 1) -> tuple[Any, ...]:
        kinds = ["truth", "equal"] * bool(scope.whole)
        if not self.finite:
            kinds += [">", ">", "between"]
        kinds += ["not", "and", "or", "&"] if depth else []
        match self.choose(*kinds):
            case "truth":
                return ("truth", self.choose(*scope.whole))
            case "equal":
                return ("equal", self.choose(*scope.whole), self.choose(0, 1))
            case ">":
                return (">", self.expression(scope), self.expression(scope))
            case "between":
                return ("between", self.expression(scope), -0.3, 0.9)
            case "not":
                return ("not", self.condition(scope, depth - 1))
            case "&":
                # Between truth values, not numbers, for which it is another operation.
                sides = [("equal", self.choose(*scope.whole), 1)] * bool(scope.whole)
                sides += [(">", self.expression(scope), ("constant", 0.1))] * (not self.finite)
                return ("&", self.choose(*sides), self.choose(*sides))
            case operator:
                return (operator, self.condition(scope, depth - 1), self.condition(scope, depth - 1))

    def site(self, scope: _Scope, families: list[str]) -> tuple[Any, ...]:
        family, place = self.choose(*families), self.place()
        # In a finite program discrete sites have probabilities that are known, and none is small.
        fixed = self.finite and family in [*WHOLE, "bernoullis"]
        parameter = ("constant", self.choose(*NUMBERS)) if fixed else self.expression(scope)
        name = f"x{place}"
        kinds = [(VECTORS, scope.vectors), (WHOLE, scope.whole), (["bernoullis"], scope.pairs), (REALS, scope.reals)]
        next(names for families, names in kinds if family in families).append(name)
        return ("site", place, name, family, [parameter])

    def statement(self, scope: _Scope, depth: int, *kinds: str) -> tuple[Any, ...]:
        discrete = FINITE if self.finite else [*WHOLE, "bernoullis"]
        match self.choose(*(kinds or self.kinds(scope, depth))):
            case "assign" if scope.reals:
                return ("assign", self.choose(*scope.reals), self.expression(scope))
            case "observe":
                family = self.choose(*LIKELIHOODS)
                return ("observe", self.place(), family, self.expression(scope), self.choose(*OBSERVED[family]))
            case "factor" | "deterministic" as kind:
                return (kind, self.place(), self.expression(scope))
            case "if":
                return ("if", self.condition(scope), self.body(scope, depth), self.body(scope, depth))
            case "for":
                return ("for", self.choose(*scope.whole), self.body(scope, depth))
            case _:
                return self.site(scope, [*REALS, *REALS, *VECTORS, *discrete, *discrete])

    def kinds(self, scope: _Scope, depth: int) -> list[str]:
        kinds = ["site", "site", "site", "assign", "observe", "factor", "deterministic"]
        if depth:
            kinds += ["if"] * (4 if scope.whole or not self.finite else 0)
            kinds += ["for"] * 2 * bool(scope.whole)
        return kinds

    def body(self, scope: _Scope, depth: int) -> tuple[Any, ...]:
        inner = scope.inner()
        return tuple(self.statement(inner, depth - 1) for _ in range(self.choose(0, 1, 1, 2)))


def random_program(seed: int, finite: bool) -> Tree:
    builder, scope = _Builder(Random(seed), finite), _Scope([], [], [], [])
    statements = [builder.site(scope, REALS), builder.site(scope, FINITE)]
    # Most programs would branch little if that were left to chance alone.
    for kind in builder.choose(["if"], ["for"], ["if", "if"], ["if", "for"], ["for", "if"]):
        statements += [builder.statement(scope, 1) for _ in range(builder.choose(0, 1, 2))]
        statements.append(builder.statement(scope, 2, kind))
    statements.append(("observe", builder.place(), "normal", builder.expression(scope), 0.4))
    return Tree(tuple(statements), builder.choose(True, False))


def programs(finite: bool = False) -> st.SearchStrategy[Tree]:
    """A random program; `finite`: one that decides on discrete sites alone, of known and not too small probability.

    Made from a seed, not draw by draw: Hypothesis would spend its few examples on programs that are nearly the same.
    """
    return st.builds(random_program, seed=st.integers(0, 2**32), finite=st.just(finite))
