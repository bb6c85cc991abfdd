"""Prediction: executions of the program with other arguments, and with its observations drawn.

An execution is given the values of a posterior draw, and goes where they lead it with the new arguments. A site that
the draw does not have, or whose value does not fit there (another shape, outside the support), is drawn from the prior.
Every observation is drawn from its distribution: one without a value, None, in the distribution's own shape, and one
with a value in the shape of that. Without a posterior draw, all sites are drawn: prior draws and prior predictive.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from anabranch import errors
from anabranch.combine.draws import Draw, Draws, Picked, checked_number, gathered
from anabranch.combine.observed import replicates
from anabranch.divide import Constraints, Division, Executions, Program, divide, stable_hash, why_not_drawn
from anabranch.language import drawing_what_is_not_observed

__all__ = ["called", "from_prior", "predictive", "prior", "replicated"]

logger = logging.getLogger("anabranch")

_AT_ONCE = 1_000
"""Executions that go through the program together: each needs memory for all values on its way."""


def prior(
    program: Callable[..., Any],
    *args: Any,
    n: int = 1000,
    seed: int = 0,
    split: Mapping[str, bool] | Iterable[str] = (),
    max_sites: int = 10_000,
    **kwargs: Any,
) -> Draws:
    """n executions of a program from its prior, with new data for each observation: prior draws and prior predictive.

    Args:
        program: an ordinary Python function over NumPyro distributions.
        args: its arguments. Those left out are None, and an observation whose value is None is drawn in the shape of
            its distribution; one that has a value, in the shape of the value.
        n: how many executions.
        seed: where every random choice comes from.
        split, max_sites: as in `infer`.
        kwargs: keyword arguments of the program.

    Neither factors nor observations weigh the executions.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> def coin(heads):
        ...     fair = ab.sample("fair", dist.Bernoulli(0.5))
        ...     p = 0.5 if fair else ab.sample("p", dist.Beta(1.0, 1.0))
        ...     ab.observe("heads", dist.Binomial(10, p), heads)
        >>> draws = ab.prior(coin, n=2000)
        >>> bool(abs(draws["heads"].mean() - 5) < 0.3), bool((draws["p"].mask == (draws["fair"] == 1)).all())
        (True, True)
    """
    n, seed = checked_number(n, seed)
    args, kwargs = _filled(program, args, kwargs)
    return from_prior(divide(program, args, kwargs, split, max_sites).program, n, seed)


def from_prior(program: Program, n: int, seed: int) -> Draws:
    """n executions of a program with its arguments from the prior, with new data."""
    out: list[Draw | None] = [None] * n
    with drawing_what_is_not_observed():
        division, rng = Division(program), np.random.default_rng([seed, 2])
        for start in range(0, n, _AT_ONCE):
            size = min(_AT_ONCE, n - start)
            arrived = division.explore(size, stable_hash("prior", seed, start) >> 2)
            _place(arrived, start + np.arange(size), (), rng, out)
    return _draws(out)


def predictive(
    program: Program, picked: Sequence[Picked], n: int, seed: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Draws:
    """An execution with these arguments for each of n picked points; without any, with those of the program."""
    if args or kwargs:
        args, kwargs = _filled(program.function, args, kwargs)
        program = replace(program, args=args, kwargs=kwargs)
    return _draws(_executed(program, picked, n, seed)[0])


def replicated(program: Program, picked: Sequence[Picked], n: int, seed: int) -> dict[str, Any]:
    """The new data alone, by name, of executions with the arguments of the program."""
    found, names = _executed(program, picked, n, seed)
    draws = _draws(found)
    return {name: draws[name] for name in names}


def _executed(
    program: Program, picked: Sequence[Picked], n: int, seed: int
) -> tuple[list[Draw | None], dict[str, None]]:
    """An execution for each of n picked points, and the names of the observations that have values."""
    out: list[Draw | None] = [None] * n
    names: dict[str, None] = {}
    with drawing_what_is_not_observed():
        division, rng = Division(program), np.random.default_rng([seed, 2])
        for group, each in enumerate(picked):
            for start in range(0, len(each.points), _AT_ONCE):
                rows = slice(start, start + _AT_ONCE)
                values = each.solution.path.values(each.points[rows])
                hashed = stable_hash("predictive", seed, group, start) >> 2
                arrived = _sent(division, values, len(each.points[rows]), hashed)
                names |= _place(arrived, each.positions[rows], values, rng, out)
    return out, names


def _sent(division: Division, values: Mapping[str, np.ndarray], n: int, seed: int) -> list[Executions]:
    """Executions with these values as far as they fit."""
    try:
        return division.send(Constraints(values, redraw_outside=True), n, seed)
    except (TypeError, AttributeError, IndexError, ValueError) as error:
        if any(argument is None for argument in (*division.program.args, *division.program.kwargs.values())):
            error.add_note(
                "anabranch: an argument of the program is None here, so that observations of it are drawn. If the "
                "program computes with it, give an array of the right shape instead: its values are not used by observe"
            )
        raise


def _filled(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the program, with None for those left out that have no default."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # one that does not say
        return args, dict(kwargs)
    name = getattr(function, "__name__", "the program")
    try:
        bound = signature.bind_partial(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{name} cannot be called with these arguments: {error}") from None
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for each in signature.parameters.values():
        if each.default is each.empty and each.kind not in variadic:
            bound.arguments.setdefault(each.name, None)
    # In the order of the signature, or positional arguments would be mistaken for each other.
    bound.arguments = {name: bound.arguments[name] for name in signature.parameters if name in bound.arguments}
    return bound.args, dict(bound.kwargs)


def _place(
    arrived: Iterable[Executions],
    positions: np.ndarray,
    given: Iterable[str],
    rng: np.random.Generator,
    out: list[Draw | None],
) -> dict[str, None]:
    """Enter executions with their new data as draws, each at its position; gives the names of the new data."""
    known, names = set(given), dict[str, None]()
    for group in arrived:
        if group.path is None or (group.run is not None and group.run.invalid):
            continue
        _check_proper(group, known)
        named = group.outcome()
        new = replicates(group, rng)
        names |= dict.fromkeys(new)
        named = replace(named, values={**named.values, **new})
        for row, member in enumerate(group.members):
            out[positions[member]] = Draw(group.path.description, named, row)
    return names


def _check_proper(group: Executions, given: set[str]) -> None:
    """Raise `ImproperSite` if a site must be drawn and has an improper prior."""
    for site in group.recording.sites:
        if site.name not in given and why_not_drawn(site).startswith("an improper prior"):
            raise errors.ImproperSite(
                "it would be drawn from its prior, which is improper",
                at=errors.Place(site.name, site.where),
                remedy="Give it a proper prior: a wide normal distribution, for example",
            )


def _draws(found: Sequence[Draw | None]) -> Draws:
    present = [draw for draw in found if draw is not None]
    if len(present) < len(found):
        logger.warning(
            "%d of %d executions were left out: they had more sites than max_sites, or invalid parameters",
            len(found) - len(present), len(found),
        )  # fmt: skip
    return Draws(present)


def called(f: Callable[..., Any], draws: Draws, rng: np.random.Generator) -> Any:
    """f(draw), or f(draw, rng) if it takes two arguments, at each draw: an array, or a list if the shapes differ."""
    arguments = (rng,) if _takes_two(f) else ()
    return gathered([f(draw, *arguments) for draw in draws])


def _takes_two(f: Callable[..., Any]) -> bool:
    """True if the function has a second positional argument without a default."""
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is p.empty for p in parameters) > 1
