"""Single-site Metropolis-Hastings within a path, compiled.

A step stays on its path if the chosen site is continuous and no guard depends on it. If, in addition, the parameters of
that site and the supports of all others are the same at every point of the path, the step needs the density of the path
alone, and a compiled loop makes many of them. With u the coordinates, x(u) the values and J_s = |dx_s/du_s|, the ratios
of `single_site.py` are

    γ(x')/γ(x) · f_s(x_s)/f_s(x'_s)        for a value drawn from the prior,
    γ(x')/γ(x) · J_s(u'_s)/J_s(u_s)        for a local move of the coordinates.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from anabranch.divide import Density, Jitted, Path, independent_sites, supports_are_constant
from anabranch.limits import Pace, checkpoint

__all__ = ["PathLoop", "PathSteps", "ProposedSteps", "sites_within"]

_PRIOR_DRAWS = 4_096
"""Prior draws of a path that are made at a time."""


def sites_within(path: Path) -> list[int]:
    """The numbers of the sites of a path that can be moved without leaving it and independently of the others."""
    guarded = any(decision.node is not None for decision in path.recording.decisions)
    if guarded or path.sequences > 1 or not supports_are_constant(path):
        return []
    # A fixed value may be impossible at most values of another site: such a path has few prior draws.
    return independent_sites(path) if len(path.prior(_PRIOR_DRAWS).points) == _PRIOR_DRAWS else []


@dataclass(frozen=True)
class ProposedSteps:
    """The proposals of T steps of C chains.

    `chosen` (T, C) is a number among the sites that can be moved, `from_prior` (T, C) whether it is drawn from the
    prior. Of `numbers` (T, C, dim), those of the chosen site are its new coordinates then, else their change. A step is
    accepted if its log ratio is above `log_uniforms` (T, C).
    """

    chosen: np.ndarray
    from_prior: np.ndarray
    numbers: np.ndarray
    log_uniforms: np.ndarray


@dataclass(frozen=True)
class PathSteps:
    """T steps of C chains.

    `log_density` (T, C) and `points` (T, C, dim) are those after each step; `values` (C, numbers of the free sites),
    `log_probs` (C, sites) and `log_likelihood` (C,) those at the end. Chains that are not `usable` (C,) had no finite
    coordinates, at the edge of a support: they did not move, and their other numbers have no meaning.
    """

    usable: np.ndarray
    points: np.ndarray
    log_density: np.ndarray
    values: np.ndarray
    log_probs: np.ndarray
    log_likelihood: np.ndarray


class PathLoop:
    """The compiled loop of one path, for `block` chains at a time."""

    max_steps: ClassVar[int] = 64
    """Steps of one call: more of them take fewer calls, and longer until a limit is noticed."""

    def __init__(self, path: Path, sites: list[int], block: int) -> None:
        self.path, self.sites, self.block = path, sites, block
        self.moved = [path.sites[number] for number in sites]
        self.density = path.recording.once(Density)
        self._prior_draws, self._used = np.zeros((0, path.dim)), 0
        self.pace = Pace()  # of the steps of one call

    def from_prior(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """n rows of coordinates, in which the sites that can be moved are independent draws from the prior."""
        while self._used + n > len(self._prior_draws):
            more = self.path.prior(_PRIOR_DRAWS, seed=int(rng.integers(2**62))).points
            self._prior_draws, self._used = np.concatenate([self._prior_draws[self._used :], more]), 0
        self._used += n
        return self._prior_draws[self._used - n : self._used].copy()

    def advance(self, values: np.ndarray, lengths: np.ndarray, moves: ProposedSteps) -> PathSteps:
        """Advance chains from these values of the free sites (C, numbers), each by its number of steps (C,)."""
        blocks = []
        for start in range(0, len(values), self.block):
            checkpoint()
            blocks.append(self._loop(*self._arguments(slice(start, start + self.block), values, lengths, moves)))
        usable, points, log_density, *last = zip(*blocks, strict=True)
        # The last block is padded with chains, and every block with steps.
        made = slice(len(moves.chosen)), slice(len(values))
        history = [np.concatenate(each, axis=1)[made] for each in (points, log_density)]
        first, *at_end = (np.concatenate(each)[: len(values)] for each in (usable, *last))
        return PathSteps(first, *history, *at_end)

    def compile(self, values: np.ndarray, moves: ProposedSteps) -> None:
        """Compile the loop before its steps are timed, if it is not compiled yet."""
        if not self._loop.compilations:
            rows = slice(0, self.block)
            self._loop.compiled_for(*self._arguments(rows, values, np.zeros(len(values), int), moves))

    def _arguments(self, rows: slice, values: np.ndarray, steps: np.ndarray, moves: ProposedSteps) -> list[np.ndarray]:
        number, time = len(steps[rows]), len(moves.chosen)

        def padded(array: np.ndarray) -> np.ndarray:
            out = np.zeros((self.max_steps, self.block, *array.shape[2:]), array.dtype)
            out[:time, :number] = array[:, rows]
            return out

        return [
            np.pad(values[rows], [(0, self.block - number), (0, 0)], mode="edge"),
            np.pad(steps[rows], (0, self.block - number)),
            *map(padded, (moves.chosen, moves.from_prior, moves.numbers, moves.log_uniforms)),
        ]

    @cached_property
    def _loop(self) -> Jitted:
        sites, columns = np.array(self.sites), np.zeros((len(self.moved), self.path.dim), bool)
        for row, site in enumerate(self.moved):
            columns[row, site.columns] = True
        parts = jax.vmap(self.density.traced_parts)

        def advance(values: Any, lengths: Any, chosen: Any, from_prior: Any, numbers: Any, log_uniforms: Any) -> Any:
            chains = jnp.arange(self.block)

            def step(t: Any, carried: Any) -> Any:
                point, state, points, log_densities = carried
                moved = jnp.where(from_prior[t][:, None], numbers[t], point + numbers[t])
                proposed = jnp.where(jnp.asarray(columns)[chosen[t]], moved, point)
                new = parts(proposed)
                site = jnp.asarray(sites)[chosen[t]]
                prior, jacobian = new[1] - state[1], new[2] - state[2]
                correction = jnp.where(from_prior[t], -prior[chains, site], jacobian[chains, site])
                ratio = _log_density(new) - _log_density(state) + correction
                accepted = (log_uniforms[t] < ratio) & (t < lengths)
                point, *state = (
                    jnp.where(accepted.reshape(-1, *[1] * (old.ndim - 1)), fresh, old)
                    for fresh, old in zip((proposed, *new), (point, *state), strict=True)
                )
                return point, tuple(state), points.at[t].set(point), log_densities.at[t].set(_log_density(state))

            point = jax.vmap(self.density.traced_point)(values)
            state = parts(point)
            usable = jnp.all(jnp.isfinite(point), axis=1) & (_log_density(state) > -jnp.inf)
            lengths = jnp.where(usable, lengths, 0)
            empty = jnp.zeros((self.max_steps, *point.shape)), jnp.zeros((self.max_steps, self.block))
            _, state, points, log_densities = jax.lax.fori_loop(0, jnp.max(lengths), step, (point, state, *empty))
            return usable, points, log_densities, state[0], state[1], state[3]

        return Jitted(advance)


def _log_density(parts: Any) -> Any:
    """log γ; minus infinity where it is NaN or infinite, which counts as impossible."""
    total = jnp.sum(parts[1], axis=-1) + parts[3]
    return jnp.where(total < jnp.inf, total, -jnp.inf)
