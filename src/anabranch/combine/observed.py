"""The observations of a path: their log densities at points, and replicates of them."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.tree_util import tree_flatten, tree_leaves, tree_unflatten

from anabranch.divide import (
    Executions,
    NamedValues,
    Node,
    Observation,
    Path,
    Recording,
    Terms,
    draw,
    unwrapped,
    with_batch_axis,
)
from anabranch.limits import holding
from anabranch.numpyro_internals import ONE_AT_A_TIME

__all__ = ["Parts", "data_of", "log_likelihoods", "pointwise", "replicates"]

Parts = tuple[tuple[str, int], ...]
"""The names of observations, each with the number of its parts."""

_BLOCK = 256
"""Points evaluated at once: the intermediate results of a large density need memory for each."""


def log_likelihoods(path: Path, points: np.ndarray, *, data_only: bool = False) -> list[NamedValues]:
    """The log density of each part of each observation at each point; of factors, too, unless `data_only`."""

    def of(recording: Recording, observation: Observation) -> Any:
        return recording.once(Terms).elements(observation) if observation.is_data or not data_only else None

    return [
        NamedValues(index, {name: np.broadcast_to(x, (len(index), *x.shape[1:])) for name, x in found.items()})
        for index, found in _over_points(path, points, of)
    ]


def pointwise(path: Path, points: np.ndarray) -> tuple[Parts | None, np.ndarray]:
    """The observations, None if they differ within the path, and the log likelihood of each part at each point."""
    found = log_likelihoods(path, points, data_only=True)
    parts = tuple((name, value[0].size) for name, value in found[0].values.items())
    out = np.zeros((len(points), sum(size for _, size in parts)))
    for each in found:
        if tuple((name, value[0].size) for name, value in each.values.items()) != parts:
            return None, out
        if parts:
            out[each.index] = np.concatenate([v.reshape(len(v), -1) for v in each.values.values()], axis=1)
    return parts, out


def data_of(path: Path) -> dict[str, np.ndarray]:
    """The observed values by name, in the order of the program; without those that are random."""
    observations = [each for each in path.recording.observations if each.is_data]
    return {each.name: np.asarray(each.inputs[0]) for each in observations if not isinstance(each.inputs[0], Node)}


def replicates(executions: Executions, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """New data of executions from the distribution of each observation, in the shape of the data. Factors have none."""

    def of(recording: Recording, observation: Observation) -> Any:
        return _distribution_of_data(observation) if observation.is_data else None

    found = _in_rows(executions.outcome(partial(_traced, of)))
    return {name: draw(distribution, rng, len(executions.members)) for name, distribution in found.items()}


def _distribution_of_data(observation: Observation) -> Any:
    """The distribution of an observation in the shape of the data: one may have been observed many times."""
    distribution = unwrapped(observation.distribution, dist.MaskedDistribution)
    shape = np.shape(observation.value)
    batch = shape[: len(shape) - len(distribution.event_shape)]
    return distribution.expand(np.broadcast_shapes(batch, distribution.batch_shape))


def _over_points(
    path: Path, points: np.ndarray, of: Callable[[Recording, Observation], Any]
) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
    """Something traced of each observation, by name, at the points with these numbers."""
    for part in path.traced_values(points, partial(_traced, of), _BLOCK):
        yield part.index, _in_rows(part)


def _traced(of: Callable[[Recording, Observation], Any], recording: Recording) -> OrderedDict[str, Any]:
    """Something of each observation, by name, where there is any; jax would sort a plain dictionary."""
    with holding(ONE_AT_A_TIME), recording.trace.current(), numpyro.validation_enabled(False):
        wanted = [(observation.name, of(recording, observation)) for observation in recording.observations]
    return OrderedDict((name, quantity) for name, quantity in wanted if quantity is not None)


def _in_rows(part: NamedValues) -> dict[str, Any]:
    """The result, whose arrays have an axis for the points, of length one where all share it."""
    leaves, tree = tree_flatten(part.result)
    varies = tree_leaves(part.varies[1])
    rows = [leaf if varying else with_batch_axis(leaf) for leaf, varying in zip(leaves, varies, strict=True)]
    found: dict[str, Any] = tree_unflatten(tree, rows)
    return found
