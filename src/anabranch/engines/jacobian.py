"""The Jacobian of one decision sequence of a move, ∂(x', a')/∂(x, a) over the continuous numbers.

A decision sequence is a recorded graph. JAX differentiates it forwards, and NumPy evaluates the derivative over all
rows at once, so that nothing is compiled. Values that a move only hands on, under their own or another name, add a row
and a column with a single one to the matrix, and are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints

from anabranch import errors
from anabranch.divide import Lanes, Node, Recording, Site, as_input, base_support, evaluate_jaxpr, inside
from anabranch.engines.traces import Traces

__all__ = ["TRACE", "Branch", "bare", "of_trace"]

TRACE = "trace: "
"""The prefix of the model's sites, so that an auxiliary variable may have the name of a site."""


def of_trace(name: str) -> bool:
    """Whether a value belongs to the trace, and not to the auxiliary variables."""
    return name.startswith(TRACE)


def bare(name: str) -> str:
    """The name as the user wrote it."""
    return name.removeprefix(TRACE)


@dataclass(frozen=True)
class _Space:
    """The numbers of a continuous site that can vary: all of its array, or one fewer in each row of a simplex."""

    shape: tuple[int, ...]
    size: int
    simplex: bool

    @classmethod
    def of(cls, site: Site) -> _Space:
        simplex = isinstance(base_support(site.distribution.support), type(constraints.simplex))
        return cls(site.shape, int(np.prod(site.unconstrained_shape)), simplex)

    def displaced(self, value: Any, numbers: Any) -> Any:
        """The value, with its numbers moved; the last of a simplex follows from the others."""
        if not self.simplex:
            return value + numbers.reshape(self.shape)
        step = numbers.reshape(*self.shape[:-1], -1)
        return value + jnp.concatenate([step, -step.sum(axis=-1, keepdims=True)], axis=-1)

    def numbers(self, value: Any) -> Any:
        value = jnp.asarray(value, np.float64)
        return (value[..., :-1] if self.simplex else value).reshape(-1)


@dataclass(eq=False)
class Branch:
    """One decision sequence of a move from one path."""

    recording: Recording
    move: str
    _derivatives: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.outputs: dict[str, Any] = {name: as_input(value) for name, value in self.recording.result.items()}
        """The new values by name: nodes of the graph, or constants."""
        self.spaces = {site.name: _Space.of(site) for site in self.recording.sites if not site.discrete}
        """The continuous sites that go in."""
        self.size = sum(space.size for space in self.spaces.values())

    def jacobian(self, onto: Branch, point: Traces, rows: np.ndarray) -> np.ndarray:
        """∂(x', a')/∂(x, a) over the continuous numbers, for each of the rows, up to the order of rows and columns.

        `onto` is the decision sequence of the way back, whose inputs are our outputs.
        """
        key = tuple(onto.spaces.items())
        if key not in self._derivatives:
            self._derivatives[key] = self._derivative(onto)
        derivative = self._derivatives[key]
        if derivative is None:
            return np.ones((len(rows), 0, 0))
        arrays = []
        for site in self.recording.sites:
            values = point.values[site.name, site.shape][rows]
            arrays.append(values.astype(np.int64) if site.discrete else values)
        [matrix] = evaluate_jaxpr(derivative, arrays)
        return np.broadcast_to(matrix, (len(rows), *matrix.shape[1:]))

    def _derivative(self, onto: Branch) -> Any:
        """The Jacobian as a jaxpr of the values of all sites; None if all continuous values are only handed on."""
        sources, targets = self._that_change(onto)
        ends = np.cumsum([self.spaces[site.name].size for site in sources])
        if not ends.any():
            return None
        nodes = [site.outputs[0] for site in self.recording.sites]
        steps: Any = self.recording.trace.graph.schedule([leaf for leaf, _ in targets], dict.fromkeys(nodes))

        def jacobian(*values: Any) -> Any:
            def image(displacement: Any) -> Any:
                lanes = Lanes(dict(zip(nodes, values, strict=True)))
                for site, numbers in zip(sources, jnp.split(displacement, ends[:-1]), strict=True):
                    node = site.outputs[0]
                    lanes.values[node] = self.spaces[site.name].displaced(lanes.values[node], numbers)
                lanes.run(steps)
                return jnp.concatenate([space.numbers(lanes[leaf]) for leaf, space in targets])

            return jax.jacfwd(image)(jnp.zeros(ends[-1]))

        types = [jax.ShapeDtypeStruct(site.shape, site.value.aval.dtype) for site in self.recording.sites]
        with inside():
            return jax.make_jaxpr(jacobian)(*types)

    def _that_change(self, onto: Branch) -> tuple[list[Site], list[tuple[Any, _Space]]]:
        """The continuous sites and the outputs, without those that are only handed on."""
        sources: dict[Node, Site] = {s.outputs[0]: s for s in self.recording.sites if not s.discrete}
        targets = []
        for name, space in onto.spaces.items():
            leaf = self.outputs[name]
            if isinstance(leaf, Node) and leaf in sources and self.spaces[sources[leaf].name] == space:
                del sources[leaf]
                continue
            self._check_space(name, space)
            targets.append((leaf, space))
        for site in sources.values():
            self._check_space(site.name, self.spaces[site.name])
        return list(sources.values()), targets

    def _check_space(self, name: str, space: _Space) -> None:
        if not space.simplex and space.size != int(np.prod(space.shape)):
            raise errors.EngineCannotRun(
                f"the move {self.move!r} changes the values of a site whose numbers cannot vary by themselves, "
                "so that the Jacobian is not defined",
                site=bare(name),
                remedy="Hand the site on as it is, or write it in the program as a function of numbers that can vary",
            )
