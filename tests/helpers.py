"""What the tests of several modules share: executions seen by plain NumPyro, and by a division; and a clock."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer.util import log_density, potential_energy

from anabranch import addresses
from anabranch.divide import Division, Executions, Path
from anabranch.divide.recording import Program
from anabranch.limits import Limits

Values = Mapping[str, np.ndarray]


def disguised(x: Any) -> Any:
    """x itself, computed so that it is not recognised as linear: a Gaussian path would be solved exactly."""
    return jnp.sinh(jnp.arcsinh(x))


# By NumPyro ---------------------------------------------------------------------------------------------------------


def numpyro_log_density(program: Callable[..., Any], args: tuple[Any, ...], values: Values) -> float:
    """The log density of one execution, by NumPyro alone, in double precision."""
    with jax.enable_x64(True), addresses.execution(program):
        total, _ = log_density(program, args, {}, {name: jnp.asarray(value) for name, value in values.items()})
        return float(total)


def numpyro_coordinates(program: Callable[..., Any], args: tuple[Any, ...], values: Values) -> dict[str, np.ndarray]:
    """The unconstrained value of each continuous site of one execution, by NumPyro's transforms."""
    with jax.enable_x64(True), addresses.execution(program):
        data = {name: jnp.asarray(value) for name, value in values.items()}
        sites = handlers.trace(handlers.substitute(program, data=data)).get_trace(*args)
        return {
            name: np.asarray(biject_to(sites[name]["fn"].support).inv(value))
            for name, value in data.items()
            if not sites[name]["fn"].support.is_discrete
        }


def numpyro_unconstrained_log_density(
    program: Callable[..., Any], args: tuple[Any, ...], values: Values, coordinates: Values
) -> float:
    """Minus NumPyro's potential energy: log density plus log Jacobian, at coordinates of the continuous sites."""
    with jax.enable_x64(True), addresses.execution(program):
        discrete = {name: jnp.asarray(value) for name, value in values.items() if name not in coordinates}
        points = {name: jnp.asarray(value) for name, value in coordinates.items()}
        return -float(potential_energy(handlers.substitute(program, data=discrete), args, {}, points))


# By a division ------------------------------------------------------------------------------------------------------


def interpreted(program: Callable[..., Any], *args: Any, **settings: Any) -> Division:
    """A division that runs the program's Python for every execution."""
    return Division(Program(program, args, interpreted=True, **settings))


def row(values: Values, i: int) -> dict[str, np.ndarray]:
    """One execution of many."""
    return {name: np.asarray(value)[i] for name, value in values.items()}


def member_values(groups: Iterable[Executions]) -> dict[int, dict[str, np.ndarray]]:
    """The values of every execution that ended, by its number."""
    out = {}
    for group in groups:
        if group.path is not None:
            values = group.values()
            out.update({int(member): row(values, i) for i, member in enumerate(group.members)})
    return out


def some_rows(
    groups: Iterable[Executions], of_each: int, at_most: int = 1000
) -> Iterator[tuple[Path, dict[str, np.ndarray]]]:
    """The first few executions of each group, with the path they took."""
    for group in list(groups)[:at_most]:
        if group.path is not None:
            values = group.values()
            for i in range(min(of_each, len(group.members))):
                yield group.path, row(values, i)


def batch(values: Values) -> dict[str, np.ndarray]:
    """One execution as a batch of one."""
    return {name: np.asarray(value)[None] for name, value in values.items()}


def could_hold(path: Path, values: Values) -> bool:
    """Whether an execution meets the addresses of a path with values of the right kind, and those that it fixes."""
    if tuple(values) != path.addresses:
        return False
    for site in path.sites:
        value = np.asarray(values[site.name])
        if value.shape != site.shape or np.issubdtype(value.dtype, np.integer) != site.discrete:
            return False
        if site.value is not None and not np.array_equal(value, site.value):
            return False
    return True


def indicator(path: Path, values: Values) -> bool:
    """Whether an execution lies in a path."""
    return could_hold(path, values) and bool(path.evaluate(path.points(batch(values)), compile=False).guard[0])


def named_log_density(path: Path, points: np.ndarray, *, compile: bool = False) -> np.ndarray:
    """The log density of the named values at each point: without the Jacobian."""
    evaluation = path.evaluate(points, compile=compile)
    assert evaluation.guard.all()
    return evaluation.log_prior - evaluation.log_jacobian + evaluation.log_likelihood


def agrees_with_numpyro(
    division: Division, *args: Any, executions: int = 20, of_each: int = 1, reference: Callable[..., Any] | None = None
) -> None:
    """Executions have NumPyro's density, and come back from their points as they were, in double precision.

    `reference` is the program for NumPyro, where that is not the same.
    """
    reference = reference or division.program.function
    rows = list(some_rows(division.explore(executions, seed=1), of_each, at_most=4))
    assert rows
    for path, values in rows:
        points = path.points(batch(values))
        for name, value in path.values(points).items():
            assert value.dtype in (np.int64, np.float64)
            np.testing.assert_allclose(value[0], values[name], rtol=1e-7, atol=1e-7, err_msg=name)
        density = named_log_density(path, points)
        assert density.dtype == np.float64
        expected = numpyro_log_density(reference, args, values)
        np.testing.assert_allclose(density, expected, rtol=1e-9, atol=1e-9, err_msg=path.description)


# Time ---------------------------------------------------------------------------------------------------------------


def use_false_clock(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    """Let so many seconds pass whenever a run asks how many have: then it does the same on every machine."""
    times = itertools.count(1)
    monkeypatch.setattr(Limits, "elapsed", property(lambda limits: step * next(times)))
