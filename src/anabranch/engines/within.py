"""Single-site Metropolis-Hastings within a path, compiled.

Most steps of a chain stay on its path: whenever the site that is chosen is real and no guard depends on it. Where, in
addition, the parameters of that site are the same at every point of the path, and so are the supports of all others,
the step needs nothing but the density of the path, and many of them can be made in one compiled loop. With u the
coordinates, x(u) the values and J_s = |dx_s/du_s|, the ratios of `single_site.py` are

    γ(x')/γ(x) · f_s(x_s)/f_s(x'_s)        for a value drawn from the prior,
    γ(x')/γ(x) · J_s(u'_s)/J_s(u_s)        for a local move of the coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anabranch.divide import Path
from anabranch.divide.density import Density
from anabranch.divide.dispatch import Jitted
from anabranch.divide.support import independent_sites, supports_are_constant
from anabranch.limits import checkpoint
from anabranch.pace import Pace

__all__ = ["Moves", "Stretch", "Within", "sites_within"]

LONGEST = 64
"""Steps of one call of the compiled loop, at most."""
_POOL = 4_096
"""Draws from the prior of a path that are made at a time."""


def sites_within(path: Path) -> list[int]:
    """The sites of a path, by number, that can be moved without leaving it and without knowing of the others."""
    guarded = any(decision.node is not None for decision in path.recording.decisions)
    if guarded or len(path.recordings) > 1 or not supports_are_constant(path):
        return []
    # A value that was decided on may be impossible at most values of another site: such a path has few prior draws.
    return independent_sites(path) if len(path.prior(_POOL).points) == _POOL else []


@dataclass(frozen=True)
class Moves:
    """What T steps of C chains propose.

    `chosen` (T, C) is a number among the sites that can be moved, `from_prior` (T, C) says whether they are drawn
    anew, and `numbers` (T, C, dim) are then the coordinates, else steps of them; those of other sites have no meaning.
    A step is accepted if its log ratio is above `log_uniforms` (T, C).
    """

    chosen: np.ndarray
    from_prior: np.ndarray
    numbers: np.ndarray
    log_uniforms: np.ndarray


@dataclass(frozen=True)
class Stretch:
    """What became of C chains in T steps: where they were after each, and all that is known of where they are now.

    `log_density` (T, C) and `points` (T, C, dim) are those after each step, `values` (C, numbers of the free sites),
    `log_probs` (C, sites) and `log_likelihood` (C,) those at the end. Chains that are not `usable` (C,), at the very
    edge of a support, where there are no coordinates, did not move, and nothing else is known of them.
    """

    usable: np.ndarray
    points: np.ndarray
    log_density: np.ndarray
    values: np.ndarray
    log_probs: np.ndarray
    log_likelihood: np.ndarray


class Within:
    """The compiled loop of one path, for `block` chains at a time."""

    def __init__(self, path: Path, sites: list[int], block: int) -> None:
        self.path, self.sites, self.block = path, sites, block
        self.moved = [path.sites[number] for number in sites]
        self.density = path.recording.once(Density)
        self._pool, self._used = np.zeros((0, path.dim)), 0
        self.pace = Pace()  # of the steps of one call

    def from_prior(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """n rows of coordinates; in each the sites that can be moved are independent draws from the prior."""
        while self._used + n > len(self._pool):
            more = self.path.prior(_POOL, seed=int(rng.integers(2**62))).points
            self._pool, self._used = np.concatenate([self._pool[self._used :], more]), 0
        self._used += n
        return self._pool[self._used - n : self._used].copy()

    def advance(self, values: np.ndarray, lengths: np.ndarray, moves: Moves) -> Stretch:
        """Chains from these values of the free sites (C, numbers), each by its number of steps (C,)."""
        blocks = [slice(start, start + self.block) for start in range(0, len(values), self.block)]
        parts = []
        for rows in blocks:
            checkpoint()
            parts.append(self._advance_block(rows, values, lengths, moves))
        usable, points, log_density, *last = zip(*parts, strict=True)
        return Stretch(
            np.concatenate(usable), *(np.concatenate(each, axis=1) for each in (points, log_density)),
            *map(np.concatenate, last),
        )  # fmt: skip

    def _advance_block(self, rows: slice, values: np.ndarray, lengths: np.ndarray, moves: Moves) -> list[np.ndarray]:
        number, time = len(lengths[rows]), len(moves.chosen)
        usable, points, log_density, *last = self._loop(*self._arguments(rows, values, lengths, moves))
        history = [each[:time, :number] for each in (points, log_density)]
        return [usable[:number], *history, *(each[:number] for each in last)]

    def compile(self, values: np.ndarray, moves: Moves) -> None:
        """Compile the loop, if it is not yet: how long that takes says nothing of the steps."""
        if not self._loop.compilations:
            rows = slice(0, self.block)
            self._loop.compiled_for(*self._arguments(rows, values, np.zeros(len(values), int), moves))

    def _arguments(self, rows: slice, values: np.ndarray, lengths: np.ndarray, moves: Moves) -> list[np.ndarray]:
        """Those of the loop, for a block of chains."""
        number, time = len(lengths[rows]), len(moves.chosen)

        def padded(array: np.ndarray) -> np.ndarray:
            out = np.zeros((LONGEST, self.block, *array.shape[2:]), array.dtype)
            out[:time, :number] = array[:, rows]
            return out

        return [
            np.pad(values[rows], [(0, self.block - number), (0, 0)], mode="edge"),
            np.pad(lengths[rows], (0, self.block - number)),
            *map(padded, (moves.chosen, moves.from_prior, moves.numbers, moves.log_uniforms)),
        ]

    @cached_property
    def _loop(self) -> Jitted:
        mine = np.zeros((len(self.moved), self.path.dim), bool)
        for row, site in enumerate(self.moved):
            mine[row, site.columns] = True
        sites, columns = np.array(self.sites), mine
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
            empty = jnp.zeros((LONGEST, *point.shape)), jnp.zeros((LONGEST, self.block))
            _, state, points, log_densities = jax.lax.fori_loop(0, jnp.max(lengths), step, (point, state, *empty))
            return usable, points, log_densities, state[0], state[1], state[3]

        return Jitted(advance)


def _log_density(parts: Any) -> Any:
    """log γ; minus infinity where it is not a number or infinite, which counts as impossible."""
    total = jnp.sum(parts[1], axis=-1) + parts[3]
    return jnp.where(total < jnp.inf, total, -jnp.inf)
