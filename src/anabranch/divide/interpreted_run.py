"""A run of the interpreter, made here or by a helper in another process.

Of a run that was made elsewhere, what samplers ask comes as plain data: the values, the terms of the density, and the
parameters of each site. For anything else the program is run again with the same values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jax.tree_util import tree_leaves

from anabranch.divide.batch import Batch, Constraints, stable_hash
from anabranch.divide.internals import as_input, is_key
from anabranch.divide.interpret import interpret, replay
from anabranch.divide.recorder import TooManySites
from anabranch.divide.recording import Program, Recording, Site
from anabranch.divide.repetitions import Signature
from anabranch.divide.scores import Scorer
from anabranch.divide.sharing import Held

__all__ = ["InterpretedRun", "RunOrder", "RunRecord", "executed", "kind_of"]


@dataclass(frozen=True)
class RunRecord:
    """What a run of the interpreter has found, as plain data.

    Attributes:
        signature: of its path.
        values: of each site, by name.
        log_probs, log_likelihood: of its sites (1, sites), and of all observations together (1,).
        parameters: of the distribution of each site, by name, after what kind of distribution it is.
        invalid: what is wrong with a parameter, if something is.
    """

    signature: Signature
    values: dict[str, np.ndarray]
    log_probs: np.ndarray
    log_likelihood: np.ndarray
    parameters: dict[str, tuple[str, list[np.ndarray]]]
    invalid: str

    @classmethod
    def of(cls, run: Recording) -> RunRecord:
        values = run.values
        scores = run.once(Scorer)({name: value[None] for name, value in values.items()}, 1)
        parameters = {site.name: (kind_of(site), _parameters(site)) for site in run.sites}
        invalid = "" if run.invalid is None else str(run.invalid)
        return cls(run.signature, values, *scores, parameters, invalid)


def kind_of(site: Site) -> str:
    """Sites of one kind have the same distribution but for its parameters."""
    return str(site._flat[1])


def _parameters(site: Site) -> list[np.ndarray]:
    inputs = list(map(as_input, tree_leaves(site.distribution)))
    if any(map(is_key, inputs)):
        raise TypeError("a key of jax.random is no plain data")
    return list(map(np.asarray, inputs))


@dataclass
class InterpretedRun:
    """A run of the interpreter: its recording, or the record of one that a helper has made."""

    program: Program
    made: Recording | RunRecord

    @property
    def record(self) -> RunRecord | None:
        """What a helper has sent; None if the run was made here."""
        return self.made if isinstance(self.made, RunRecord) else None

    @cached_property
    def recording(self) -> Recording:
        """The recording; the program is run again if that is elsewhere."""
        return interpret(self.program, replay(self.made.values)) if isinstance(self.made, RunRecord) else self.made

    @property
    def values(self) -> dict[str, np.ndarray]:
        """The value of each site by name."""
        return self.made.values

    @property
    def signature(self) -> Signature:
        """That of its path."""
        return self.made.signature

    @property
    def invalid(self) -> str:
        """What is wrong with a parameter; empty if nothing is."""
        return str(self.made.invalid or "")


def executed(program: Program, member: Batch, given: dict[str, np.ndarray]) -> Recording:
    """One execution by the interpreter: sites that are not given are drawn. It may raise `TooManySites`."""
    return interpret(
        program,
        lambda site, parameters: given[site.name] if site.name in given else member.draw(site, parameters)[0],
    )


@dataclass(frozen=True)
class RunOrder:
    """The order to execute some members of a batch by the interpreter.

    Attributes:
        seed, stream: of the batch.
        keys: of the members, each of which draws from a stream of its own.
        constraints: on the members, in their order.
        given: values that they have drawn before, in their order, or one for all.
    """

    seed: int
    stream: int
    keys: Sequence[int]
    constraints: Constraints
    given: dict[str, np.ndarray]

    @classmethod
    def of(cls, node_key: int, batch: Batch, given: dict[str, np.ndarray], rows: slice) -> RunOrder:
        """The order for the members in some rows."""
        members = batch.members[rows]
        keys = [stable_hash(node_key, int(member)) for member in members]
        some = {name: value[rows] if len(value) > 1 else value for name, value in given.items()}
        return cls(batch.seed, batch.stream, keys, batch.constraints.take(members), some)

    def done(self, held: Held) -> list[RunRecord | None]:
        return list(self._records(held.program))

    def _records(self, program: Program) -> Iterator[RunRecord | None]:
        """The record of each execution; None beyond the bound on sites, which is for the process of the run to say."""
        for row, key in enumerate(self.keys):
            member = Batch(self.seed, self.constraints, np.array([row]), key, self.stream)
            given = {name: value[row if len(value) > 1 else 0] for name, value in self.given.items()}
            try:
                yield RunRecord.of(executed(program, member, given))
            except TooManySites:
                yield None
