"""The compiled backend: the graphs of a path, under `jit`, over batches of points.

A path has one compiled density, and one with its gradient, each made when first needed. Paths that have the same code
share them (`code`). Points are evaluated in blocks of one size, so that a path is compiled once whatever the sizes of
the populations sent to it. The size follows from the graph alone: large where a point is cheap and the call would cost
more than the work, small where the values between the steps would fall out of the processor's cache, and where a few
points should not pay for many.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from anabranch import errors
from anabranch.divide.code import Code
from anabranch.divide.density import Density
from anabranch.divide.dispatch import Jitted, in_blocks
from anabranch.divide.evaluation import Evaluation, NamedValues
from anabranch.divide.host_gradient import HostCost, HostGradient
from anabranch.divide.numpy_backend.primitives import jaxprs_in, repetitions
from anabranch.divide.recording import Choices, Recording
from anabranch.divide.sharing import Held, Speed, shared
from anabranch.divide.step_forms import of_form

if TYPE_CHECKING:
    from anabranch.divide.path import Path

__all__ = ["Compiled", "log_density_function"]

MIN_BLOCK, MAX_BLOCK = 32, 512
NUMBERS_PER_BLOCK = 2**24
"""Numbers that the steps of a density compute for one block; chosen on mixtures of 2 to 90 parts."""
ACCELERATOR_BLOCK, NUMBERS_PER_ACCELERATOR_BLOCK = 2**14, 2**27
"""The same two where jax computes on another device than the processor: it has thousands of lanes, and a gigabyte for
the values between the steps. Not measured on one."""
MANY_NUMBERS = 2**20
"""Numbers for one point from which on a block may be smaller than the least: of a million observations, the values
between the steps of 32 points would take gigabytes."""
SMALLER_BLOCKS, MAX_PADDING = (32, 128), 1_000_000_000
"""Smaller blocks for callers with few points, and the numbers computed for padding before one is compiled."""
SECONDS_BEFORE_SHARING = 5.0
"""Seconds that a compiled density has run before others are asked to do a share, each of whom must compile it."""
GRADIENT_BLOCK = 64
"""Points per call of the function with the gradient, at most: searches for modes come in dozens."""


class Compiled:
    """A path as the sum over its decision sequences, of which exactly one holds at any point of the path."""

    def __init__(self, recordings: Sequence[Recording], padding: dict[int, int]) -> None:
        self.densities = [recording.once(Density) for recording in recordings]
        self._padding = padding
        self.samplers: dict[Any, Callable[..., Any]] = {}
        self._speed, self._speed_on_host = Speed(least=SECONDS_BEFORE_SHARING), Speed()

    def evaluate(self, points: np.ndarray) -> Evaluation:
        block = self._block_for(len(points))
        return self._shared(points, block, self._speed, lambda some: self.evaluate_here(some, block))

    def evaluate_here(self, points: np.ndarray, block: int) -> Evaluation:
        """The compiled density, in blocks of this size, in this process."""
        with self._speed.measured(len(points)):
            return Evaluation(*in_blocks(self._function, block, points))

    def _block_for(self, n: int) -> int:
        """The block for n points: a smaller one once more was spent on padding than it takes to compile."""
        smaller = next((size for size in SMALLER_BLOCKS if n <= size < self.block), None)
        if smaller is None:
            return self.block
        self._padding[smaller] = self._padding.get(smaller, 0) + (self.block - smaller) * self._numbers
        return smaller if self._padding[smaller] > MAX_PADDING else self.block

    def evaluate_on_host(self, points: np.ndarray) -> Evaluation:
        block = max(NUMBERS_PER_BLOCK // max(self._numbers, 1), 1)
        return self._shared(points, block, self._speed_on_host, lambda some: self.evaluate_on_host_here(some, block))

    def evaluate_on_host_here(self, points: np.ndarray, block: int) -> Evaluation:
        """The density by NumPy, in blocks of this size, in this process."""
        blocks = [points[start : start + block] for start in range(0, max(len(points), 1), block)]
        with self._speed_on_host.measured(len(points)):
            found = [_chosen([density.at(block) for density in self.densities], np) for block in blocks]
        return Evaluation(*(np.concatenate(part) for part in zip(*found, strict=True)))

    def _shared(
        self, points: np.ndarray, block: int, speed: Speed, here: Callable[[np.ndarray], Evaluation]
    ) -> Evaluation:
        """An evaluation of which others may do a share, in whole blocks: another size would change the last bits."""
        recordings, on_host = [density.recording for density in self.densities], speed is self._speed_on_host

        def order(rows: slice) -> CompiledPoints:
            return CompiledPoints([each.choices for each in recordings], points[rows], block, on_host)

        n, program = len(points), recordings[0].program
        return Evaluation.joined(
            shared(program, n, block, speed.seconds(n), here=lambda rows: here(points[rows]), order=order)
        )

    def differentiate(self, points: np.ndarray, inverse_temperature: float) -> tuple[Evaluation, np.ndarray]:
        size = min(self.block, GRADIENT_BLOCK)
        *values, gradient = in_blocks(self._gradient, size, points, inverse_temperature)
        return Evaluation(*values), gradient

    def differentiate_on_host(self, points: np.ndarray, inverse_temperature: float) -> tuple[Evaluation, np.ndarray]:
        """The density and its gradient by NumPy."""
        *values, gradient = self.host_gradient.at(points, inverse_temperature)
        return Evaluation(*values), gradient

    @property
    def host_cost(self) -> HostCost | None:
        """What that takes; None where NumPy cannot compute it."""
        return self.host_gradient.cost

    def evaluate_as_differentiated(self, points: np.ndarray) -> Evaluation:
        """The density by NumPy, as `differentiate_on_host` computes it."""
        return Evaluation(*self.host_gradient.values(points))

    def named(
        self, points: np.ndarray, traced: Callable[[Recording], Any] | None = None, at_once: int | None = None
    ) -> list[NamedValues]:
        """For each decision sequence the points at which it holds, with what `Path.outcomes` says of them."""
        out = []
        for density in self.densities:
            recording = density.recording
            wanted = (recording.deterministics, recording.result) if traced is None else ({}, traced(recording))
            for start in range(0, len(points), at_once or max(len(points), 1)):
                block = points[start : start + at_once] if at_once else points
                holds = density.at(block)[3] if len(self.densities) > 1 else np.ones(len(block), bool)
                if holds.any():
                    values, (deterministics, result), varies = density.named(block[holds], wanted)
                    out.append(NamedValues(start + np.flatnonzero(holds), values, deterministics, result, varies))
        return out

    def points(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """The points with these values; where the sequences have different transforms, by the one that holds."""
        first = self.densities[0].points(values)
        for density in self.densities[1:]:
            points = density.points(values)
            first = np.where(density.at(points)[3][:, None], points, first)
        return first

    @cached_property
    def _numbers(self) -> int:
        return sum(of_form(density, numbers_per_point) for density in self.densities)

    @cached_property
    def block(self) -> int:
        """Points per call of the compiled functions, a power of two; a smaller batch is padded to it."""
        numbers, most = NUMBERS_PER_BLOCK, MAX_BLOCK
        if platform() != "cpu":
            numbers, most = NUMBERS_PER_ACCELERATOR_BLOCK, ACCELERATOR_BLOCK
        fitting = numbers // max(self._numbers, 1)
        least = MIN_BLOCK if self._numbers <= MANY_NUMBERS else 1
        return min(max(1 << fitting.bit_length() >> 1, least), most)

    @cached_property
    def _function(self) -> Jitted:
        codes, keys, arguments = self._codes

        def at_point(point: Any, *arguments: Sequence[Any]) -> tuple[Any, ...]:
            return _chosen([code.traced(point, own) for code, own in zip(codes, arguments, strict=True)], jnp)

        mapped = jax.vmap(at_point, in_axes=(0, *[None] * len(codes)))
        return Jitted(mapped, arguments, key=("density", keys))

    @cached_property
    def _gradient(self) -> Jitted:
        codes, keys, arguments = self._codes
        mapped = jax.vmap(_with_gradient(codes), in_axes=(0, None, *[None] * len(codes)))
        return Jitted(mapped, arguments, key=("gradient", keys))

    @cached_property
    def host_gradient(self) -> HostGradient:
        """The density and its gradient, traced to be computed by NumPy."""
        codes, keys, arguments = self._codes
        return HostGradient(_with_gradient(codes), self.densities[0].recording.dim, arguments, keys)

    @property
    def _codes(self) -> tuple[list[Code], tuple[Hashable, ...], list[list[np.ndarray]]]:
        """The code of each decision sequence, its key, and its arguments."""
        codes, arguments = zip(*(density.code for density in self.densities), strict=True)
        return list(codes), tuple(code.key for code in codes), list(arguments)


def _with_gradient(codes: Sequence[Code]) -> Callable[..., tuple[Any, ...]]:
    """The parts of the density at one point, and the gradient of log prior + inverse temperature · log likelihood."""

    def of_density(code: Code, own: Sequence[Any], point: Any, inverse_temperature: Any) -> tuple[Any, ...]:
        def tempered(point: Any) -> tuple[Any, Any]:
            prior, likelihood, jacobian, holds = code.traced(point, own)
            return prior + inverse_temperature * likelihood, (prior, likelihood, jacobian, holds)

        (_, values), gradient = jax.value_and_grad(tempered, has_aux=True)(point)
        return (*values[:3], gradient, values[3])

    def at_point(point: Any, inverse_temperature: Any, *arguments: Sequence[Any]) -> tuple[Any, ...]:
        pairs = zip(codes, arguments, strict=True)
        *values, gradient, holds = _chosen([of_density(*pair, point, inverse_temperature) for pair in pairs], jnp)
        return (*values, holds, gradient)

    return at_point


@dataclass(frozen=True)
class CompiledPoints:
    """The order to evaluate points of a path in blocks of one size, by compiled code or by NumPy."""

    choices: Sequence[Choices]
    points: np.ndarray
    block: int
    on_host: bool

    def done(self, held: Held) -> Evaluation:
        backend = held.path(self.choices)._backend
        assert isinstance(backend, Compiled)
        evaluate = backend.evaluate_on_host_here if self.on_host else backend.evaluate_here
        return evaluate(self.points, self.block)


def _chosen(parts: list[tuple[Any, ...]], numpy: Any) -> tuple[Any, ...]:
    """The values of the part whose guards hold; the last of each part says whether they do.

    Selected, never multiplied: what a sequence computes where it does not hold may be NaN.
    """
    *values, inside = parts[0]
    for *others, holds in parts[1:]:
        values = [
            numpy.where(holds.reshape(holds.shape + (1,) * (a.ndim - holds.ndim)), b, a)
            for a, b in zip(values, others, strict=True)
        ]
        inside = inside | holds
    return (*values, inside)


def platform() -> str:
    """What jax computes on: "cpu", "gpu", "tpu"."""
    device: Any = jax.config.values.get("jax_default_device")
    return str(getattr(device, "platform", device) or jax.default_backend())


def numbers_per_point(density: Density) -> int:
    """How many numbers the steps of a density compute for one point."""
    return sum(
        sum(density.graph.types[node].size for node in step.outputs) + _numbers_inside(step.params)
        for step in density.evaluator.steps
    )


def _numbers_inside(params: Mapping[str, Any]) -> int:
    """The same for the jaxprs that a primitive runs; a `scan` runs its own many times."""
    once = 0
    for jaxpr in jaxprs_in(params):
        for equation in jaxpr.eqns:
            avals: list[Any] = [variable.aval for variable in equation.outvars]
            once += sum(aval.size for aval in avals) + _numbers_inside(equation.params)
    return once * repetitions(params)


def log_density_function(path: Path) -> Callable[[jax.Array], jax.Array]:
    """log γ_k at one point: minus infinity outside the path and where the density is no number.

    The function can be differentiated once, and mapped over points with `jax.vmap`. Its gradient is zero wherever it
    would not be finite, and outside the path. To be called in double precision, as under `jax.enable_x64`. It stands
    for the decision sequences that the path has now; one that is found later needs another call.
    """
    backend, last = path._backend, path.last_decision
    if not isinstance(backend, Compiled):
        raise errors.NoGradient(
            f"the path ({path.description}) is run by the interpreter, which JAX cannot compile",
            where="?" if last is None else last.where,
            remedy="Write the program with jax.numpy so that it can be compiled, or use a method without gradients",
        )
    densities = backend.densities

    @jax.custom_vjp
    def log_density(point: jax.Array) -> jax.Array:
        value = -jnp.inf * jnp.ones(())
        for density in densities:
            total, inside = _total(density, point)
            value = jnp.where(inside, total, value)
        return value

    # Each sequence is differentiated by itself, and the one that holds is chosen afterwards: the derivative of a choice
    # would take in what the others compute where they do not hold, which may be NaN.
    def forward(point: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, gradient = -jnp.inf * jnp.ones(()), jnp.zeros_like(point)
        for density in densities:
            of_density = jax.value_and_grad(lambda x, density=density: _total(density, x), has_aux=True)
            (total, inside), slope = of_density(point)
            value = jnp.where(inside, total, value)
            gradient = jnp.where(inside & jnp.isfinite(slope), slope, gradient)
        return value, gradient

    log_density.defvjp(forward, lambda gradient, cotangent: (cotangent * gradient,))
    return log_density


def _total(density: Density, point: jax.Array) -> tuple[Any, Any]:
    """The log density of one decision sequence, and whether it is one: the guards hold and it is a number."""
    log_prior, log_likelihood, _, holds = density.traced(point)
    total = log_prior + log_likelihood
    return total, holds & (total < jnp.inf)
