"""Facts about the sites of a path: the values of discrete ones, which of them guards read, how their prior is drawn."""

from typing import Any, NamedTuple

import numpy as np
from jax.tree_util import tree_leaves
from numpyro.distributions import constraints

from anabranch.divide.distributions import base_support, why_not_drawn
from anabranch.divide.graph import Node
from anabranch.divide.internals import as_input
from anabranch.divide.path import Path
from anabranch.divide.recording import Site
from anabranch.divide.terms import Terms

__all__ = [
    "Bounds", "bounds_of", "finite_values", "independent_sites", "integer_bounds", "is_prior_alone", "prior_is_sampled",
    "supports_are_constant", "values_of", "why_not_drawn",
]  # fmt: skip


class Bounds(NamedTuple):
    """The least and the greatest whole number that a coordinate can have; None where there is none or none is known."""

    low: int | None
    high: int | None


def finite_values(path: Path) -> tuple[range | None, ...]:
    """For each coordinate of a path the whole numbers outside which it has no mass.

    None where the coordinate is continuous, has infinitely many values, or has values that depend on other random
    values. In a path that is run by the interpreter they may always do so.
    """
    if path.interpreted:
        return (None,) * path.dim
    return tuple(None if bounds is None else _range(bounds) for bounds in integer_bounds(path))


def integer_bounds(path: Path) -> tuple[Bounds | None, ...]:
    """For each coordinate of a path bounds outside which it has no mass.

    None where the coordinate is no whole number, or one of several that bind each other in a way that depends on random
    values (the counts of a multinomial of random size). In a path that is run by the interpreter they may always do so.
    """
    if path.interpreted:
        return (None,) * path.dim
    by_sequence = ([b for site in recording.free for b in bounds_of(site)] for recording in path.recordings)
    return tuple(_union(each) for each in zip(*by_sequence, strict=True))


def prior_is_sampled(path: Path) -> bool:
    """Whether `path.prior` draws from the density that `log_prior` states.

    It does not where a site is improper, or where a mask or a scale takes part of it out of the density.
    """
    return not any(why_not_drawn(site) for recording in path.recordings for site in recording.sites)


def is_prior_alone(path: Path) -> bool:
    """Whether the path has no observation and no factor, and its prior draws follow the density.

    Of a path that the interpreter runs it is not known: other executions of it may observe something.
    """
    terms = [each for recording in path.recordings for each in recording.observations if not each.adds_nothing]
    return not path.interpreted and not terms and prior_is_sampled(path)


def independent_sites(path: Path) -> list[int]:
    """The free continuous sites, by number, whose parameters are the same at every point of the path."""
    if path.interpreted:
        return []
    terms = path.recording.once(Terms)
    return [site.index for site in path.recording.free if not site.discrete and not terms.reads(site.inputs)]


def supports_are_constant(path: Path) -> bool:
    """Whether a point of the path keeps its other coordinates when the value of one site is changed."""
    if path.interpreted:
        return False
    for recording in path.recordings:
        for site in recording.free:
            bounds = [] if site.discrete else tree_leaves(site.support)
            if any(isinstance(bound, constraints.Constraint) for bound in bounds):  # of the user's own: unknown
                return False
            if recording.once(Terms).reads(map(as_input, bounds)):
                return False
    return True


def values_of(site: Site) -> list[range | None]:
    """The values of every coordinate of a site; None where they are not known (see `finite_values`)."""
    return [None if bounds is None else _range(bounds) for bounds in bounds_of(site)]


def bounds_of(site: Site) -> list[Bounds | None]:
    """The bounds of every coordinate of a site (see `integer_bounds`)."""
    size = int(np.prod(site.unconstrained_shape))
    bounds = _bounds(site.support) if site.discrete else None
    if bounds is None:
        return [None] * size
    low, high = (
        [None] * size if b is None else np.broadcast_to(b, site.shape).reshape(-1).astype(int).tolist() for b in bounds
    )
    return [Bounds(*each) for each in zip(low, high, strict=True)]


def _bounds(support: constraints.Constraint) -> tuple[np.ndarray | None, np.ndarray | None] | None:
    """The least and the greatest value, each an array that broadcasts with the site; None where they are not known."""
    support = base_support(support)
    if support is constraints.boolean:
        return np.array(0), np.array(1)
    if isinstance(support, type(constraints.multinomial(1))):
        total = as_input(support.upper_bound)
        return None if isinstance(total, Node) else (np.array(0), np.asarray(total)[..., None])
    if isinstance(support, type(constraints.integer_interval(0, 1))):
        return _known(support.lower_bound), _known(support.upper_bound)
    if isinstance(support, constraints.integer_greater_than):
        return _known(support.lower_bound), None
    return None


def _known(bound: Any) -> np.ndarray | None:
    bound = as_input(bound)
    return None if isinstance(bound, Node) else np.asarray(bound)


def _range(bounds: Bounds) -> range | None:
    return None if bounds.low is None or bounds.high is None else range(bounds.low, bounds.high + 1)


def _union(bounds: tuple[Bounds | None, ...]) -> Bounds | None:
    """Bounds that hold for every decision sequence; None if one of them has none."""
    known = [each for each in bounds if each is not None]
    if len(known) < len(bounds):
        return None
    lows, highs = [each.low for each in known], [each.high for each in known]
    low = None if None in lows else min(lows)  # type: ignore[type-var]
    return Bounds(low, None if None in highs else max(highs))  # type: ignore[type-var]
