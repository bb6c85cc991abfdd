"""The density of one decision sequence, in unconstrained coordinates.

A point is a row of d numbers: the unconstrained coordinates of the continuous sites, and the values of the discrete
sites that no decision fixed. The graph of the recording is extended by the transforms, their Jacobians and the inverse
transforms; the density is then a sum of terms (`terms.py`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_flatten, tree_unflatten
from numpyro.distributions import biject_to

from anabranch.divide.code import Code, coded
from anabranch.divide.distributions import summed
from anabranch.divide.graph import Node, Step, alias, evaluate
from anabranch.divide.internals import PathTracer, as_input
from anabranch.divide.packing import Lanes
from anabranch.divide.recording import Recording, Site
from anabranch.divide.repetitions import Signature
from anabranch.divide.step_forms import step_form
from anabranch.divide.terms import Evaluator, Term, Terms
from anabranch.limits import checkpoint, holding
from anabranch.numpyro_internals import ONE_AT_A_TIME

__all__ = ["Density", "lanes_of_values"]


def lanes_of_values(recording: Recording, row: Any) -> Lanes:
    """All sites of a recording, to compute with by JAX: the free ones have the values in the row."""
    lanes, start = Lanes(), 0
    for site in recording.sites:
        if site.fixed is not None:
            lanes.values[site.outputs[0]] = jnp.asarray(site.fixed)
            continue
        size = int(np.prod(site.shape))
        if site.shape == () and not site.discrete:
            lanes.packed[site.outputs[0]] = (row, start)
        else:
            value = row[start : start + size].reshape(site.shape)
            lanes.values[site.outputs[0]] = jnp.round(value).astype(np.int64) if site.discrete else value
        start += size
    return lanes


class Density:
    """One recording as functions of a point. Made by `recording.once(Density)`."""

    def __init__(self, recording: Recording) -> None:
        self.recording, self.graph, self.terms = recording, recording.trace.graph, recording.once(Terms)
        self.coordinates: dict[Site, Node] = {}
        """The inputs of the graph that are the unconstrained coordinates of the free sites."""
        # Where the inputs of the graph come from: a site's value follows from its coordinates, or is fixed.
        self.sources: dict[Node, Step] = {}
        with holding(ONE_AT_A_TIME), recording.trace.current():
            self.jacobian = list(self._add_coordinates())
            self.prior, self.likelihood, self.guards = self.terms.prior, self.terms.likelihood, self.terms.guards

    def _add_coordinates(self) -> Iterator[Term]:
        """Record the way from a point to the values of the sites; the terms of its log Jacobian come out."""
        for site in self.recording.sites:
            checkpoint()
            node = site.value.node
            assert node is not None
            if site.fixed is not None:
                self.sources[node] = alias(node, site.fixed)
                continue
            point = self.recording.trace.input(site.unconstrained_shape, np.float64)
            self.coordinates[site] = point.node
            self.terms.coordinates[point.node] = site
            compute = _rounded if site.discrete else _placed
            value, *log_jacobian = self.recording.traced(
                compute, site.distribution, partial(compute, site.distribution, point), point
            )
            for part in log_jacobian:
                yield Term("jacobian", site.name, as_input(part), self.terms, site.index + 1)
            self.sources[node] = alias(node, as_input(value))

    def _evaluator(self, terms: Iterable[Term], nodes: Iterable[Any] = ()) -> Evaluator:
        """For a point: the inputs are its coordinates."""
        return Evaluator(self.graph, terms, self.coordinates.values(), self.sources, nodes)

    @cached_property
    def whole(self) -> np.ndarray:
        """The columns of discrete sites, in which only whole numbers are points of the path."""
        columns = self.recording.columns
        return np.concatenate([np.zeros(0, int), *(np.r_[columns[s.name]] for s in self.coordinates if s.discrete)])

    @cached_property
    def evaluator(self) -> Evaluator:
        """Of all terms."""
        return self._evaluator([*self.prior, *self.jacobian, *self.likelihood, *self.guards])

    @cached_property
    def form(self) -> Signature:
        """What its steps are, apart from the arrays among their constants (`step_forms`)."""
        return step_form(self)

    @cached_property
    def code(self) -> tuple[Code, list[np.ndarray]]:
        """What is compiled of it, and the arguments of that."""
        return coded(self)

    def traced(self, point: Any) -> tuple[Any, Any, Any, Any]:
        """Log prior, log likelihood, log Jacobian and guard at one point, by JAX: to be compiled."""
        code, arguments = self.code
        return code.traced(point, [jnp.asarray(array) for array in arguments])

    def at(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """What `traced` gives, by NumPy over a batch of points: nothing is compiled."""
        whole = points[:, self.whole]
        computed = self.evaluator.by_numpy(self.env(points), len(points))
        jacobian = computed.total(self.jacobian)
        holds = (whole == np.round(whole)).all(axis=1) & computed.hold(self.guards)
        return computed.total(self.prior) + jacobian, computed.total(self.likelihood), jacobian, holds

    def _lanes(self, point: Any) -> Lanes:
        lanes = Lanes()
        for site, node in self.coordinates.items():
            columns = self.recording.columns[site.name]
            if site.unconstrained_shape == ():
                lanes.packed[node] = (point, columns.start)
            else:
                lanes.values[node] = point[columns].reshape(site.unconstrained_shape)
        return lanes

    def env(self, points: np.ndarray) -> dict[Node, np.ndarray]:
        """The coordinates of points, to compute with by NumPy."""
        return {
            node: points[:, self.recording.columns[site.name]].reshape(len(points), *site.unconstrained_shape)
            for site, node in self.coordinates.items()
        }

    def traced_parts(self, point: Any) -> tuple[Any, Any, Any, Any]:
        """By JAX, the values of the free sites in a row, and log f, log Jacobian of each site, and the log likelihood.

        A site that is fixed or discrete has a log Jacobian of zero.
        """
        nodes = [site.outputs[0] for site in self.coordinates]
        computed = self._evaluator([*self.prior, *self.jacobian, *self.likelihood], nodes).by_jax(self._lanes(point))
        values = [jnp.reshape(computed.lanes[node], -1) for node in nodes]
        jacobians = {term.name: term.value for term in self.jacobian}
        return (
            jnp.concatenate([*values, jnp.zeros(0)]),
            computed.stacked(self.prior),
            computed.lanes.stacked([jacobians.get(site.name, 0.0) for site in self.recording.sites]),
            computed.total(self.likelihood),
        )

    def traced_point(self, values: Any) -> Any:
        """By JAX, the point at which the free sites have these values, given in a row."""
        have = [site.outputs[0] for site in self.recording.sites]
        computed = Evaluator(self.graph, (), have, nodes=self._inverses).by_jax(lanes_of_values(self.recording, values))
        return jnp.concatenate([jnp.zeros(0), *(jnp.reshape(computed.lanes[node], -1) for node in self._inverses)])

    def named(self, points: np.ndarray, traced: Any) -> tuple[dict[str, np.ndarray], Any, Any]:
        """Every site by name, also fixed ones; the traced values in a pytree; and which have an axis for the points."""
        leaves, tree = tree_flatten(traced, is_leaf=lambda x: isinstance(x, PathTracer))
        sites = [site.value.node for site in self.recording.sites]
        env = self.env(points)
        inputs = list(map(as_input, leaves))
        self._evaluator((), [*sites, *inputs]).by_numpy(env, len(points))
        n = len(points)

        def batch(x: Node) -> np.ndarray:
            return np.broadcast_to(env[x], (n, *env[x].shape[1:]))

        values = {site.name: batch(node) for site, node in zip(self.recording.sites, sites, strict=True)}
        varies = [isinstance(x, Node) for x in inputs]
        filled = [batch(x) if varying else x for x, varying in zip(inputs, varies, strict=True)]
        return values, tree_unflatten(tree, filled), tree_unflatten(tree, varies)

    def points(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """The points at which sites have these values; the coordinates of sites without a value are zero."""
        env: dict[Node, np.ndarray] = {}
        for site in self.recording.sites:
            if site.name in values:
                env[site.value.node] = np.asarray(values[site.name], np.int64 if site.discrete else np.float64)
        n = max((len(v) for v in env.values()), default=1)
        inverses = {s: x for s, x in zip(self.coordinates, self._inverses, strict=True) if s.name in values}
        evaluate(self.graph.schedule(list(inverses.values()), env), env)
        out = np.zeros((n, self.recording.dim))
        for site, node in inverses.items():
            columns = self.recording.columns[site.name]
            out[:, columns] = np.broadcast_to(env[node], (n, *env[node].shape[1:])).reshape(n, -1)
        return out

    @cached_property
    def _inverses(self) -> Sequence[Node]:
        """For each site of the path the node that computes its coordinates from its value."""
        nodes = []
        for site in self.coordinates:
            # Its node, even where a guard on a discrete site has made the value known.
            node, f = site.value.node, site.distribution
            if not site.discrete:
                node = as_input(self.recording.traced(_unplaced, f, partial(_unplaced, f, site.value), site.value)[0])
            nodes.append(node)
        return nodes


def _rounded(_: Any, point: Any) -> list[Any]:
    """The value of a discrete site from its coordinates."""
    return [jnp.round(point).astype(np.int64)]


def _placed(distribution: Any, point: Any) -> list[Any]:
    """The value of a continuous site from its coordinates, and the log Jacobian."""
    transform = biject_to(distribution.support)
    value = transform(point)
    return [value, summed(transform.log_abs_det_jacobian(point, value))]


def _unplaced(distribution: Any, value: Any) -> list[Any]:
    """The coordinates of a continuous site from its value."""
    return [biject_to(distribution.support).inv(value)]
