"""A batch of executions that go through the program together.

A batch holds the values that have been needed so far, over all its members, and computes more of them when a question
needs more: a site is drawn when something depends on it, and not before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to

from anabranch.divide.graph import Node, evaluate
from anabranch.divide.internals import inside
from anabranch.divide.recording import Recording, Site
from anabranch.divide.samplers import draw
from anabranch.divide.site_transforms import can_have, moved

__all__ = ["Batch", "ConstraintKey", "Constraints", "SiteProposal", "stable_hash"]

ConstraintKey = str | tuple[str, tuple[int, ...]]
SiteProposal = Callable[[Site, list[np.ndarray], np.ndarray], tuple[np.ndarray | None, np.ndarray]]
"""From a site, its parameters and the numbers of executions: their values of the site, and which of them have one."""


@dataclass(frozen=True)
class Constraints:
    """Values of some sites by address, for all executions of a batch; the other sites are drawn from the prior.

    A key is a name, or a pair of name and shape for a value that only a site of that shape is given.
    `present[name]`, where there is one, says which executions have that value; the rest draw it. `steps[name]` moves
    the value of a continuous site in its unconstrained coordinates. With `redraw_outside`, a value that does not fit
    where an execution leads (another shape, outside the support) is drawn instead.

    `proposals[key]`, by name and shape, is asked for values where executions come to the site, given its parameters.
    """

    values: Mapping[Any, np.ndarray] = field(default_factory=dict)
    present: Mapping[Any, np.ndarray] = field(default_factory=dict)
    steps: Mapping[Any, np.ndarray] = field(default_factory=dict)
    redraw_outside: bool = False
    proposals: Mapping[Any, SiteProposal] = field(default_factory=dict)

    def take(self, members: np.ndarray) -> Constraints:
        """The constraints on some of the executions, in the order in which they are given."""
        values, present, steps = (
            {key: np.asarray(column)[members] for key, column in columns.items()}
            for columns in (self.values, self.present, self.steps)
        )
        return Constraints(values, present, steps, self.redraw_outside, self.proposals)

    def key(self, site: Site) -> ConstraintKey:
        """The key of the constraint on a site, if there is one."""
        key = site.name, site.shape
        return key if key in self.values or key in self.proposals else site.name


@dataclass
class Batch:
    """Executions with the same decisions so far.

    `members` are their numbers among all asked for, `key` identifies the decisions, and `env` has an array for
    each node that is known: its first axis is the member, or has length one for what all members share.
    """

    seed: int
    constraints: Constraints
    members: np.ndarray
    key: int = 0
    stream: int = 0  # tells uses of one seed apart
    env: dict[Node, np.ndarray] = field(default_factory=dict)
    within: Recording | None = None
    """The recording whose additions some of the nodes are: if it were made again, these might have other numbers."""

    def __len__(self) -> int:
        return len(self.members)

    def take(self, index: np.ndarray, key: int, settled: Mapping[Node, np.ndarray] | None = None) -> Batch:
        """The members at `index`, after another decision; `settled` are values that all of them share."""
        # Where all go the same way, the arrays need no copy, of which a long loop makes many.
        env = dict(self.env) if len(index) == len(self) else self._values_at(index)
        env.update({node: value[None] for node, value in (settled or {}).items()})
        return Batch(self.seed, self.constraints, self.members[index], key, self.stream, env, self.within)

    def _values_at(self, index: np.ndarray) -> dict[Node, np.ndarray]:
        return {node: value if len(value) == 1 else value[index] for node, value in self.env.items()}

    def copies(self, index: np.ndarray, members: np.ndarray, stream: int) -> Batch:
        """Copies of the members at `index`, with other numbers and draws of their own."""
        return Batch(self.seed, self.constraints, members, self.key, stream, self._values_at(index), self.within)

    def values(self, recording: Recording, node: Node) -> np.ndarray:
        """The value of a node for each member (or once, where all share it)."""
        if node not in self.env:
            evaluate(recording.trace.graph.schedule([node], self.env, recording.drawn_from), self.env, self.draw)
            if recording.length is not None and node >= recording.length:
                self.within = recording
        return self.env[node]

    def site_values(self, recording: Recording) -> dict[str, np.ndarray]:
        """Every site of the recording by name, over the members: drawn now if nothing needed it before."""
        out = {}
        for site in recording.sites:
            value = self.values(recording, site.outputs[0])
            out[site.name] = np.broadcast_to(value, (len(self), *site.shape))
        return out

    def draw(self, site: Site, parameters: list[np.ndarray]) -> np.ndarray:
        """The value of a site for each member: given, or drawn from the prior."""
        proposal = self.constraints.proposals.get((site.name, site.shape))
        if proposal is not None:
            value, keep = proposal(site, parameters, self.members)
        else:
            value, keep = self._constrained_value(site), np.ones(len(self), bool)
        if value is None:
            return draw_site(site, parameters, self.generator(site.name), len(self))
        value = self._after_step(site, parameters, value)
        present = self.constraints.present.get(self.constraints.key(site))
        if present is not None:
            keep &= present[self.members]
        if self.constraints.redraw_outside:
            keep &= can_have(site, parameters, value)
        if keep.all():
            return value
        drawn = draw_site(site, parameters, self.generator(site.name), len(self))
        return np.where(keep.reshape(-1, *[1] * len(site.shape)), value, drawn)

    def _constrained_value(self, site: Site) -> np.ndarray | None:
        """The value that a constraint gives a site, for each member, if it has the shape and kind of the site."""
        given = self.constraints.values.get(self.constraints.key(site))
        if given is None:
            return None
        value = np.asarray(given)[self.members]
        if site.discrete and (present := self.constraints.present.get(self.constraints.key(site))) is not None:
            value = np.where(present[self.members].reshape(-1, *[1] * (value.ndim - 1)), value, 0)
        whole = not site.discrete or bool((value == np.round(value)).all())
        if self.constraints.redraw_outside and not (whole and value.shape[1:] == site.shape):
            return None
        if not whole:
            raise ValueError(f"values: site {site.name!r} ({site.where}) is discrete; got a number that is not whole")
        return value.astype(np.int64 if site.discrete else np.float64)

    def _after_step(self, site: Site, parameters: list[np.ndarray], value: np.ndarray) -> np.ndarray:
        steps = self.constraints.steps.get(self.constraints.key(site))
        if steps is None or site.discrete or steps.shape[1:] != site.unconstrained_shape:
            return value
        steps = steps[self.members]
        rows = np.flatnonzero(steps.reshape(len(steps), -1).any(axis=1))
        if len(rows):
            theirs = [p if len(p) == 1 else p[rows] for p in parameters]
            value[rows] = moved(site, theirs, value[rows], steps[rows])
        return value

    def generator(self, address: str) -> np.random.Generator:
        """A generator that depends on the seed, the address and the decisions, not on which paths were found before."""
        return np.random.default_rng([self.seed, self.stream, stable_hash(address), self.key])


def stable_hash(*parts: Any) -> int:
    """A number that depends on the parts alone: the same in every process."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def draw_site(site: Site, parameters: Iterable[np.ndarray], rng: np.random.Generator, n: int) -> np.ndarray:
    """Prior draws of a site; uniform coordinates between -2 and 2 where the prior is improper."""
    distribution = site.with_parameters(list(parameters))
    try:
        return draw(distribution, rng, n)
    except NotImplementedError:
        if site.discrete:
            raise
        with inside():
            coordinates = jnp.asarray(rng.uniform(-2, 2, (n, *site.unconstrained_shape)))
            return np.asarray(biject_to(distribution.support)(coordinates), np.float64)
