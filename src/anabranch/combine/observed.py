"""The observations of a path: their log densities at points, and replicates of them.

The parameters of every observation are nodes of the recorded graph, so both are evaluated for many points at once, on
the host, without running the program again. A path that is interpreted runs it once for each point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.tree_util import tree_flatten, tree_unflatten
from numpyro.distributions.distribution import Unit

from anabranch.divide import Path
from anabranch.divide.density import Density
from anabranch.divide.graph import Node, with_batch_axis
from anabranch.divide.internals import as_input
from anabranch.divide.interpret import interpret, replay
from anabranch.divide.recording import Recording
from anabranch.divide.samplers import draw
from anabranch.divide.terms import Observation, support_holds, unwrapped

__all__ = ["ByName", "log_likelihoods", "replicates"]

_BLOCK = 256
"""Points evaluated at once: the intermediate results of a large density need memory for each."""


@dataclass(frozen=True)
class ByName:
    """Arrays by name with one row for each of the points numbered `index`."""

    index: np.ndarray
    values: dict[str, np.ndarray]


@dataclass(frozen=True)
class _Quantity:
    """Something about an observation: traced values, and what is made of them.

    `finish` is given their values, each with an axis for the points (of length one where all share it), and the number
    of points.
    """

    name: str
    traced: Sequence[Any]
    finish: Callable[[list[np.ndarray], int], np.ndarray]


def log_likelihoods(path: Path, points: np.ndarray, *, data_only: bool = False) -> list[ByName]:
    """The log density of each part of each observation at each point; of factors, too, unless `data_only`."""

    def quantities(recording: Recording) -> list[_Quantity]:
        chosen = [o for o in recording.observations if _is_data(o) or not data_only]
        return [_Quantity(o.name, [_log_prob(o)], _only_one) for o in chosen]

    return list(_over_points(path, points, quantities))


def replicates(path: Path, points: np.ndarray, rng: np.random.Generator) -> list[ByName]:
    """New data from the distribution of each observation, in the shape of the data. Factors have none."""

    def quantities(recording: Recording) -> list[_Quantity]:
        return [_replicate(o, rng) for o in recording.observations if _is_data(o)]

    return list(_over_points(path, points, quantities))


def _is_data(observation: Observation) -> bool:
    """Not a factor, nor a site that has only one value."""
    return not isinstance(unwrapped(observation.distribution), Unit | dist.Delta)


def _log_prob(observation: Observation) -> Any:
    """What `terms.log_prob` sums."""
    o, value = observation, jnp.asarray(observation.value)
    holds = support_holds(o.distribution, value) if o.check_support else True
    known = as_input(holds)
    if not isinstance(known, Node) and not np.all(known):
        return jnp.asarray(-np.inf)
    terms = jnp.where(holds, o.distribution.log_prob(value), -jnp.inf)
    return terms if o.scale is None else o.scale * terms


def _only_one(values: list[np.ndarray], n: int) -> np.ndarray:
    (value,) = values
    return np.broadcast_to(value, (n, *value.shape[1:]))


def _replicate(observation: Observation, rng: np.random.Generator) -> _Quantity:
    distribution = unwrapped(observation.distribution, dist.MaskedDistribution)
    # One distribution may have been observed many times.
    shape = np.shape(observation.value)
    batch = shape[: len(shape) - len(distribution.event_shape)]
    distribution = distribution.expand(np.broadcast_shapes(batch, distribution.batch_shape))
    leaves, tree = tree_flatten(distribution)
    return _Quantity(observation.name, leaves, lambda values, n: draw(tree_unflatten(tree, values), rng, n))


# Evaluation over points -----------------------------------------------------------------------------------------------


def _over_points(
    path: Path, points: np.ndarray, quantities: Callable[[Recording], list[_Quantity]]
) -> Iterator[ByName]:
    for recording in path.recordings:
        if recording.concrete:
            yield from _interpreted(path, points, quantities)
        else:
            yield from _recorded(recording, points, quantities, several=len(path.recordings) > 1)


def _recorded(
    recording: Recording, points: np.ndarray, quantities: Callable[[Recording], list[_Quantity]], several: bool
) -> Iterator[ByName]:
    density = Density(recording)
    with recording.trace.current(), numpyro.validation_enabled(False):
        wanted = quantities(recording)
    inputs = [[as_input(x) for x in quantity.traced] for quantity in wanted]
    for start in range(0, len(points), _BLOCK):
        block = points[start : start + _BLOCK]
        holds = density.at(block)[3] if several else np.ones(len(block), bool)
        if not holds.any():
            continue
        _, values = density.named(block[holds], [quantity.traced for quantity in wanted])
        named = {}
        for quantity, nodes, arrays in zip(wanted, inputs, values, strict=True):
            parts = [a if isinstance(x, Node) else with_batch_axis(a) for x, a in zip(nodes, arrays, strict=True)]
            named[quantity.name] = quantity.finish(parts, int(holds.sum()))
        yield ByName(start + np.flatnonzero(holds), named)


def _interpreted(
    path: Path, points: np.ndarray, quantities: Callable[[Recording], list[_Quantity]]
) -> Iterator[ByName]:
    values = path.values(points)
    for i in range(len(points)):
        run = interpret(path.program, replay({name: value[i] for name, value in values.items()}))
        with run.trace.current(), numpyro.validation_enabled(False):
            wanted = quantities(run)
        known = {q.name: (q, [with_batch_axis(as_input(x)) for x in q.traced]) for q in wanted}
        yield ByName(np.array([i]), {name: q.finish(arrays, 1) for name, (q, arrays) in known.items()})
