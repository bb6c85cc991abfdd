"""A user's move as a program, which is divided like any other.

On one path of the model, with sites x, a move is the program

    a ~ q(· | x),        (x', a') = h(x, a),

whose inputs are the sites of the path and whose sites are the auxiliary variables a. All executions on the path go
through its tree of decisions together: Python runs once per sequence, in which h is a graph that JAX differentiates.
"""

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
from anabranch.divide import Batch, Constraints, Executions, Path, Program, Site, Tree, base_support, user_location
from anabranch.engines.jacobian import TRACE, Branch
from anabranch.settings import check, function, instance, positive

__all__ = ["Move", "PathMove"]

_WHOLE = constraints.integer_greater_than(-(2**53))


@dataclass(frozen=True, repr=False)
class Move:
    """A move of reversible jump: auxiliary variables given the trace, and an involution of both.

    Args:
        proposal: a program that draws auxiliary variables, called with the trace, a dictionary of the values of all
            sites. Sites that the path fixes are plain integers, all others values of JAX.
        involution: a function of the trace and of the auxiliary variables, two dictionaries, that returns the new ones.
            Applied twice, it must return its arguments.
        name: the name in messages; by default that of the involution.
        weight: how often the move is tried, relative to the others.

    A function that takes more arguments is also called with those of the program.
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


class PathMove:
    """A move from one path of the model."""

    def __init__(self, move: Move, path: Path, program: Program) -> None:
        self.move, self.path = move, path
        function = _as_program(move, path)
        # The sites of the path come on top of the auxiliary variables.
        sites = program.max_sites + len(path.sites)
        program = Program(function, program.args, program.kwargs, max_sites=sites)
        self.tree = Tree(program, on_leaf=lambda leaf: None, on_departure=self._refuse)
        self._branches: dict[Any, Branch] = {}

    def send(self, given: Constraints, rows: np.ndarray, seed: int) -> list[tuple[Branch, Executions]]:
        """Apply the move to some rows, with values of the path's sites and of any auxiliary variables."""
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

    def _refuse(self, what: str, where: str) -> None:
        raise errors.EngineCannotRun(
            f"the move {self.move.name!r} uses a real number outside JAX ({what}), where it has no derivative",
            where=where,
            remedy="Write it with jax.numpy",
        ) from None


def _as_program(move: Move, path: Path) -> Callable[..., dict[str, Any]]:
    # Wrapped, so that auxiliary variables without a name are numbered as in the proposal alone.
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
        # A value that is only handed on stays the same node of the graph.
        return {name: value if isinstance(value, jax.Array) else jnp.asarray(value) for name, value in new.items()}

    return kernel


def _declared(site: Site) -> Any:
    """A site of the model in the program of a move: its value where the path fixes it, else an input."""
    if site.fixed is not None:
        return int(site.fixed) if site.fixed.ndim == 0 else site.fixed.copy()
    # The support of single numbers may be random; the model checks whether the value is in it.
    base = base_support(site.distribution.support)
    support = _WHOLE if site.discrete else base if base.event_dim else constraints.real
    flat = dist.ImproperUniform(support, (), site.shape, validate_args=False)
    return numpyro.sample(TRACE + site.name, flat)


class _Drawn(Messenger):
    """Collects the values that a proposal draws."""

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
                where=user_location(),
                remedy="Leave the observation to the program, and compute a certain value without sampling",
            )
        self.values[msg["name"]] = msg["value"]


def _called(function: Callable[..., Any], own: tuple[Any, ...], args: Any, kwargs: Any) -> Any:
    """Call a function, with the arguments of the program as well if it takes more than its own."""
    try:
        inspect.signature(function).bind(*own)
    except TypeError:
        return function(*own, *args, **kwargs)
    return function(*own)
