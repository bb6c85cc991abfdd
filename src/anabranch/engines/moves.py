"""A move of the user's, as a program of its own that is divided like any other.

On one path of the model, with sites x, a move is the program

    a ~ q(· | x),        (x', a') = h(x, a),

whose inputs are the sites of the path and whose sites are the auxiliary variables a. All executions of a population
that are on the path go through its tree of decisions together, and run its Python once per decision sequence. Within
one, h is a recorded graph, and its derivative follows from that.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.primitives import Messenger

from anabranch import errors
from anabranch.divide import Path
from anabranch.divide.batch import Batch, Constraints
from anabranch.divide.decision_node import DecisionNode
from anabranch.divide.distributions import base_support
from anabranch.divide.executions import Executions
from anabranch.divide.recorder import LeavesJax
from anabranch.divide.recording import Program, Site
from anabranch.divide.source_location import user_frame, where
from anabranch.divide.tree import Tree
from anabranch.engines.jacobian import Branch
from anabranch.engines.joint import TRACE
from anabranch.settings import check, function, instance, positive

__all__ = ["Kernel", "Move"]

_WHOLE = constraints.integer_greater_than(-(2**53))


@dataclass(frozen=True, repr=False)
class Move:
    """A move of reversible jump: auxiliary variables given the trace, and an involution of both together.

    Args:
        proposal: a program that draws auxiliary variables, called with the trace, a dictionary of the value of every
            site of the execution. Sites that the path fixes are plain integers, all others values of JAX.
        involution: a function of the trace and of the auxiliary variables, two dictionaries, that returns the new ones.
            Applied twice, it must give back what it was given.
        name: what messages call it; the name of the involution unless said otherwise.
        weight: how often the move is tried, compared with the others.

    A function that takes more arguments is called with those of the program, too.
    """

    proposal: Callable[..., Any]
    involution: Callable[..., Any]
    name: str = ""
    weight: float = 1.0

    def __post_init__(self) -> None:
        check(self, proposal=function(), involution=function(), name=instance(str, "a text"), weight=positive())
        if not self.name:
            object.__setattr__(self, "name", getattr(self.involution, "__name__", type(self.involution).__name__))

    def __repr__(self) -> str:
        return f"Move({self.name!r})" if self.weight == 1 else f"Move({self.name!r}, weight={self.weight:g})"


class Kernel:
    """A move from one path of the model."""

    def __init__(self, move: Move, path: Path, program: Program) -> None:
        self.move, self.path = move, path
        function = _as_program(move, path)
        # There are auxiliary variables to come on top of the path's own.
        sites = program.max_sites + len(path.sites)
        self.tree = _StrictTree(Program(function, program.args, program.kwargs, max_sites=sites), move.name)
        self._branches: dict[DecisionNode, Branch] = {}

    def send(self, given: Constraints, rows: np.ndarray, seed: int) -> list[tuple[Branch, Executions]]:
        """Apply the move to some rows, with values for the path's sites, and for any auxiliary variables."""
        try:
            arrivals = self.tree.advance([Executions(self.tree.root, Batch(seed, given, rows))])
        except Exception as error:
            error.add_note(f"anabranch: in the move {self.move.name!r} from the path ({self.path.description})")
            raise
        return [(self._branch(arrival), arrival) for arrival in arrivals]

    def _branch(self, arrival: Executions) -> Branch:
        if not arrival.node.is_leaf:
            raise errors.EngineCannotRun(
                f"the proposal of the move {self.move.name!r} draws more than max_sites auxiliary variables",
                remedy="Make its loop end, or raise max_sites",
            )
        if arrival.node not in self._branches:
            self._branches[arrival.node] = Branch(arrival.recording, self.move.name)
        return self._branches[arrival.node]


class _StrictTree(Tree):
    """A tree of a program that may not leave JAX: what is computed outside has no derivative."""

    def __init__(self, program: Program, move: str) -> None:
        super().__init__(program, on_leaf=lambda leaf: None)
        self.move = move

    def _say_why_interpreted(self, left: LeavesJax) -> None:
        raise errors.EngineCannotRun(
            f"the move {self.move!r} uses a real number outside JAX ({left.what}), where it has no derivative",
            where=left.where,
            remedy="Write it with jax.numpy",
        ) from None


# The program ----------------------------------------------------------------------------------------------------------


def _as_program(move: Move, path: Path) -> Callable[..., dict[str, Any]]:
    # Wrapped, so that auxiliary variables without a name are called as in a program of their own.
    @functools.wraps(move.proposal)
    def kernel(*args: Any, **kwargs: Any) -> dict[str, Any]:
        trace = {site.name: _declared(site) for site in path.recording.sites}
        drawn = _Drawn(move)
        with drawn:
            _called(move.proposal, (dict(trace),), args, kwargs)
        result = _called(move.involution, (trace, dict(drawn.values)), args, kwargs)
        if not (isinstance(result, tuple) and len(result) == 2 and all(isinstance(part, Mapping) for part in result)):
            raise TypeError(
                f"the involution of the move {move.name!r} must return two dictionaries, the new trace and the new "
                f"auxiliary variables; got {type(result).__name__}"
            )
        new = {TRACE + name: value for name, value in result[0].items()} | dict(result[1])
        # A value that is handed on stays the very same node of the graph.
        return {name: value if isinstance(value, jax.Array) else jnp.asarray(value) for name, value in new.items()}

    return kernel


def _declared(site: Site) -> Any:
    """A site of the model inside the move's program: its value where the path fixes it, else an input."""
    if site.fixed is not None:
        return int(site.fixed) if site.fixed.ndim == 0 else site.fixed.copy()
    # The support of single numbers may be random; whether the value is in it is for the model to say.
    base = base_support(site.distribution.support)
    support = _WHOLE if site.discrete else base if base.event_dim else constraints.real
    flat = dist.ImproperUniform(support, (), site.shape, validate_args=False)
    return numpyro.sample(TRACE + site.name, flat)


class _Drawn(Messenger):
    """Collects what a proposal draws."""

    def __init__(self, move: Move) -> None:
        super().__init__()
        self.move = move
        self.values: dict[str, Any] = {}

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "sample":
            return
        if msg["is_observed"] or isinstance(msg["fn"], dist.Delta):
            raise errors.EngineCannotRun(
                f"the proposal of the move {self.move.name!r} may only draw, from distributions with a density; it has "
                f"{'an observation or a factor' if msg['is_observed'] else 'a Delta'}",
                site=msg["name"],
                where=where(user_frame()),
                remedy="Leave the observation to the program, and compute what is certain",
            )
        self.values[msg["name"]] = msg["value"]


def _called(function: Callable[..., Any], own: tuple[Any, ...], args: Any, kwargs: Any) -> Any:
    """Call with the program's arguments, too, if the function asks for more than its own."""
    try:
        inspect.signature(function).bind(*own)
    except TypeError:
        return function(*own, *args, **kwargs)
    return function(*own)
