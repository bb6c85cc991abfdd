"""Run a program once and keep what it did: one decision sequence, as a graph.

A `Recorder` runs the program under a `PathTrace`. A latent site becomes an input of the graph; an observation and a
factor become terms of the likelihood. When Python asks a random value for a concrete answer, the recorder first fixes
the discrete sites that the value depends on (paper, appendix E, "splitting on discrete variables", found here by
looking at the graph), and if that does not settle the question, keeps the answer as a guard. Which answer to follow is
the `Oracle`'s to say.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.tree_util import tree_flatten, tree_leaves, tree_unflatten
from numpyro.distributions import biject_to
from numpyro.distributions.distribution import Unit
from numpyro.primitives import Messenger

from anabranch import addresses, errors
from anabranch.divide import host
from anabranch.divide.frames import belongs_to_program, negated, question, user_frame, where
from anabranch.divide.graph import Node
from anabranch.divide.internals import LeakedTracer, PathTrace, PathTracer, TracedElsewhere, is_key

__all__ = ["Decision", "LeavesJax", "Observation", "Oracle", "Program", "Recorder", "Recording", "Site", "TooManySites"]

# NumPyro keeps its handlers in one stack for the whole process: two recordings at once would see each other's sites.
_ONE_AT_A_TIME = threading.RLock()
_QUESTIONS_PER_SITE = 20


class LeavesJax(BaseException):
    """The program needs the value of a random real outside JAX. Not an `Exception`: the program must not catch it."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(where, what)
        self.where, self.what = where, what


class TooManySites(BaseException):
    """The path has more sites than the bound. Not an `Exception`: the program must not catch it."""


@dataclass(frozen=True)
class Program:
    """A function, its arguments, and how to divide it."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    split: Mapping[str, bool] = field(default_factory=dict)
    max_sites: int = 10_000
    selecting: bool = False
    interpreted: bool = False

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)


@dataclass(eq=False)
class Site:
    """A latent site of one recording. As a step of the graph it computes its value from its parameters."""

    index: int
    name: str
    distribution: Any
    where: str
    scale: Any
    value: PathTracer
    fixed: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.aval.shape

    @cached_property
    def discrete(self) -> bool:
        return bool(self.distribution.support.is_discrete)

    @cached_property
    def unconstrained_shape(self) -> tuple[int, ...]:
        """The shape of the site's coordinates: none where it is fixed, one fewer for a simplex."""
        if self.discrete:
            return self.shape
        support = self.distribution.support
        while isinstance(support, dist.constraints.independent):
            support = support.base_constraint
        if type(support) not in biject_to._registry:
            raise errors.NoTransform(
                f"no bijection from the real numbers to its support, {support_text(support)}, is known",
                site=self.name,
                where=self.where,
                remedy="Register one with numpyro.distributions.biject_to, or write the site as a function of another",
            )
        # A constraint on single numbers has a bijection number by number; the others have no parameters.
        return self.shape if support.event_dim == 0 else tuple(biject_to(support).inverse_shape(self.shape))

    @cached_property
    def _flat(self) -> tuple[list[Any], Any]:
        return tree_flatten(self.distribution)

    @cached_property
    def inputs(self) -> list[Any]:
        """The parameters of the distribution: nodes of the graph, or constants."""
        return [as_input(leaf) for leaf in self._flat[0]]

    @property
    def outputs(self) -> tuple[Node, ...]:
        return (self.value.node,)  # type: ignore[return-value]

    def with_parameters(self, parameters: Sequence[Any]) -> Any:
        """The distribution with other parameters in place of the traced ones."""
        return tree_unflatten(self._flat[1], parameters)


@dataclass(eq=False)
class Observation:
    """A term of the likelihood: an observed site, or a factor."""

    name: str
    distribution: Any
    value: Any
    where: str
    scale: Any
    check_support: bool


@dataclass(frozen=True, eq=False)
class Decision:
    """A question that Python asked and the answer that this path gives. `node` is None where a site was fixed."""

    site: int | None
    node: Node | None
    answer: np.ndarray
    text: str
    where: str

    @property
    def key(self) -> tuple[int | None, int | None]:
        return self.site, self.node

    def __str__(self) -> str:
        return self.text if self.site is not None else f"{self.text} ({self.where})"


class Oracle(Protocol):
    """Says which way a recording goes."""

    def assign(self, recording: Recording, site: Site) -> np.ndarray | None:
        """A value for the site at once, or None to leave it open."""

    def choose_value(self, recording: Recording, site: Site) -> np.ndarray:
        """The value to fix a discrete site to."""

    def choose_answer(self, recording: Recording, node: Node) -> np.ndarray:
        """The answer to a question that depends on sites that are not fixed."""


class Recording:
    """What one run of a program did."""

    def __init__(self, program: Program, trace: PathTrace) -> None:
        self.program, self.trace = program, trace
        self.sites: list[Site] = []
        self.drawn_from: dict[Node, Site] = {}
        self.observations: list[Observation] = []
        self.decisions: list[Decision] = []
        self.deterministics: dict[str, Any] = {}
        self.result: Any = None
        self.asked: set[int] = set()
        self._log_probs: dict[int, Any] = {}
        self._mass_functions: dict[int, tuple[Node, Any]] = {}

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(site.name for site in self.sites)

    @property
    def free(self) -> list[Site]:
        """The sites that are variables of the path."""
        return [site for site in self.sites if site.fixed is None]

    @cached_property
    def signature(self) -> tuple[Any, ...]:
        """What two decision sequences must share to be one path: addresses, spaces, and the values fixed."""
        return tuple(
            (s.name, s.shape, s.discrete, s.unconstrained_shape if s.fixed is None else s.fixed.tobytes())
            for s in self.sites
        )

    @cached_property
    def fingerprint(self) -> str:
        """A digest of everything the run did. Two runs with the same decisions must have the same."""
        digest = hashlib.blake2b(repr((self.addresses, [d.key for d in self.decisions])).encode())
        steps = [(equation.primitive.name, equation.inputs) for equation in self.trace.graph.producers if equation]
        steps += [(site.name, site.inputs) for site in self.sites]
        steps += [(o.name, [o.value, *tree_leaves(o.distribution)]) for o in self.observations]
        for name, inputs in steps:
            digest.update(name.encode())
            for x in map(as_input, inputs):
                digest.update(repr(x).encode() if isinstance(x, Node) or is_key(x) else np.asarray(x).tobytes())
        return digest.hexdigest()

    def log_prob(self, site: Site) -> Any:
        """The log prior density of a site at its value, as a traced scalar; recorded when first asked for."""
        if site.index not in self._log_probs:
            with self.trace.current():
                self._log_probs[site.index] = log_prob(
                    site.distribution, site.value, site.scale, site.discrete, site.name, site.where
                )
        return self._log_probs[site.index]

    def log_likelihood(self, observation: Observation) -> Any:
        """The log density of an observation, as a traced scalar."""
        o = observation
        with self.trace.current():
            return log_prob(o.distribution, o.value, o.scale, o.check_support, o.name, o.where)

    def mass_function(self, site: Site) -> tuple[Node, Any]:
        """The log probability of a discrete site as a function of its value: the node of that value, and the result."""
        if site.index not in self._mass_functions:
            with self.trace.current():
                value = self.trace.input(site.shape, np.int64)
                result = log_prob(site.distribution, value, site.scale, True, site.name, site.where)
            self._mass_functions[site.index] = value.node, as_input(result)
        return self._mass_functions[site.index]

    def describe(self) -> str:
        return ", ".join(map(str, self.decisions)) or "the only path so far"


class Recorder(Messenger):
    """Runs a program once, under an oracle, and returns the `Recording`."""

    def __init__(self, program: Program, oracle: Oracle) -> None:
        super().__init__()
        self.program, self.oracle = program, oracle
        self.recording = Recording(program, PathTrace(self))
        self._seen: dict[str, str] = {}
        self._open = 0  # the sites that are not fixed, as bits

    def run(self) -> Recording:
        recording, program = self.recording, self.program
        with _ONE_AT_A_TIME, recording.trace.current(), addresses.execution(program.function), self._explained(), self:
            recording.result = program.function(*program.args, **program.kwargs)
        return recording

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what goes wrong inside JAX into our words; leave the user's own exceptions theirs."""
        try:
            yield
        except LeakedTracer as error:
            raise errors.NotAFunction(
                "a value computed in one run of the program turned up in another",
                where=where(_frame_of(error)),
                remedy="The program must not keep values between runs: remove the global, cache or memo that does",
            ) from None
        except (TracedElsewhere, jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
            raise errors.DecisionInsideTransformation(
                "a JAX transformation (jit, vmap, grad, scan, cond) asked a random value for a concrete answer",
                where=where(_frame_of(error)),
                remedy="Use jnp.where or lax.cond inside it, or take the decision outside",
            ) from error
        except errors.AnabranchError:
            raise
        except Exception as error:
            error.add_note(f"anabranch: raised by the program on the path: {self.recording.describe()}")
            raise

    # Sites ------------------------------------------------------------------------------------------------------

    def process_message(self, msg: dict[str, Any]) -> None:
        handler = {
            "sample": self._sample,
            "deterministic": self._deterministic,
            "plate": self._plate,
            "prng_key": self._unsupported,
            "control_flow": self._unsupported,
        }.get(msg["type"])
        if handler is not None:
            handler(msg)
            msg["stop"] = True

    def _sample(self, msg: dict[str, Any]) -> None:
        name, distribution, frame = msg["name"], msg["fn"], user_frame()
        place = where(frame)
        if not self.recording.trace.is_current():
            raise errors.SiteInsideTransformation(
                "it is inside a JAX transformation (jit, vmap, grad, scan, cond), which runs its function once for "
                "many values",
                site=name,
                where=place,
                remedy="Move it outside, use a vector site instead of vmap, or a Python loop instead of scan",
            )
        self._claim(name, place)
        if msg["kwargs"].get("sample_shape"):
            distribution = distribution.expand_by(msg["kwargs"]["sample_shape"])
        if msg["is_observed"]:
            self.recording.observations.append(observation(name, distribution, msg["value"], place, msg["scale"]))
        elif isinstance(distribution, dist.Delta):
            # All its mass is in one point: nothing to infer, and the value is a function of what came before.
            msg["value"] = distribution.v
            self.recording.observations.append(
                Observation(name, distribution, distribution.v, place, msg["scale"], check_support=False)
            )
        else:
            msg["value"] = self._latent(name, distribution, place, msg["scale"])

    def _claim(self, name: str, place: str) -> None:
        if name in self._seen:
            raise errors.DuplicateAddress(
                f"the address was used before, at {self._seen[name]}",
                site=name,
                where=place,
                remedy="Give each site of one execution its own name, or leave the name out",
            )
        self._seen[name] = place

    def _latent(self, name: str, distribution: Any, place: str, scale: Any) -> PathTracer:
        recording = self.recording
        index = len(recording.sites)
        if index >= self.program.max_sites:
            raise TooManySites
        try:
            discrete = bool(distribution.support.is_discrete)
        except NotImplementedError as error:
            raise errors.NoTransform(
                f"{type(distribution).__name__} does not say what its support is",
                site=name,
                where=place,
                remedy="Give the distribution a support",
            ) from error
        shape = distribution.shape()
        value = recording.trace.input(shape, np.int64 if discrete else np.float64, 1 << index)
        site = Site(index, name, distribution, place, scale, value)
        recording.sites.append(site)
        recording.drawn_from[site.outputs[0]] = site
        self._open |= 1 << index
        assigned = self.oracle.assign(recording, site)
        if assigned is not None:
            value.known = assigned
            self._open &= ~(1 << index)
            if self.program.split.get(name):
                recording.asked.add(index)
        elif self.program.split.get(name):
            if not discrete:
                raise ValueError(f"split: site {name!r} ({place}) is continuous; only a discrete site has values to split on")
            self._fix(site)
        return value

    def _deterministic(self, msg: dict[str, Any]) -> None:
        self._claim(msg["name"], where(user_frame()))
        self.recording.deterministics[msg["name"]] = msg["value"]

    def _plate(self, msg: dict[str, Any]) -> None:
        if msg["value"] is None:
            self._unsupported({"type": "plate with a subsample", "name": msg["name"]})

    def _unsupported(self, msg: dict[str, Any]) -> None:
        remedies = {
            "prng_key": "Draw with a sample statement, or make the key from a number of your own",
            "control_flow": "Use a Python loop or branch; sites inside it are divided like any other",
            "plate with a subsample": "Give the plate all the data: the evidence of a random part is not that of the whole",
        }
        raise errors.UnsupportedStatement(
            f"{msg['type']} has no meaning here: a program must be a function of its sites alone",
            site=msg.get("name"),
            where=where(user_frame()),
            remedy=remedies[msg["type"]],
        )

    # Decisions --------------------------------------------------------------------------------------------------

    def asked(self, tracer: PathTracer) -> None:
        """A known value was used as a concrete one: the sites behind it decide the path."""
        for site in self._sites_in(tracer.sites):
            if site.discrete and site.fixed is None and self.program.split.get(site.name, True):
                self.recording.asked.add(site.index)

    def decide(self, tracer: PathTracer) -> np.ndarray:
        for site in self._to_split(tracer):
            self._fix(site)
        open_sites = list(self._sites_in(tracer.sites & self._open))
        if not open_sites:
            return self._settled(tracer)
        frame = user_frame()
        if np.issubdtype(tracer.aval.dtype, np.inexact) and not all(site.discrete for site in open_sites):
            raise LeavesJax(where(frame), question(frame))
        self._bound_questions(where(frame))
        node = tracer.node
        assert node is not None
        answer = self.oracle.choose_answer(self.recording, node)
        self.recording.decisions.append(Decision(None, node, answer, _phrase(question(frame), answer), where(frame)))
        return answer

    def splits(self, tracer: PathTracer) -> bool:
        return bool(self._to_split(tracer))

    def _to_split(self, tracer: PathTracer) -> list[Site]:
        """The discrete sites that a decision on this value fixes."""
        open_sites = self._sites_in(tracer.sites & self._open)
        return [site for site in open_sites if site.discrete and self.program.split.get(site.name, True)]

    def _fix(self, site: Site) -> None:
        value = self.oracle.choose_value(self.recording, site)
        site.fixed = site.value.known = value
        self._open &= ~(1 << site.index)
        self.recording.decisions.append(Decision(site.index, None, value, f"{site.name} = {_show(value)}", site.where))

    def _settled(self, tracer: PathTracer) -> np.ndarray:
        """The value of a node all of whose sites are fixed."""
        recording = self.recording
        env: dict[Node, np.ndarray] = {
            site.value.node: site.value.known[None]  # type: ignore[index, misc]
            for site in self._sites_in(tracer.sites)
        }
        graph = recording.trace.graph
        evaluate(graph.schedule([tracer.node], env), env)  # type: ignore[arg-type]
        return env[tracer.node][0]  # type: ignore[index]

    def _bound_questions(self, place: str) -> None:
        """A loop that asks for ever and draws nothing would hang; one that draws is stopped by `max_sites`."""
        if len(self.recording.decisions) > _QUESTIONS_PER_SITE * self.program.max_sites:
            raise errors.EndlessProgram(
                f"{len(self.recording.decisions)} decisions were taken on one path",
                where=place,
                remedy="Make the loop end, or raise max_sites",
            )

    def _sites_in(self, bits: int) -> Iterator[Site]:
        while bits:
            low = bits & -bits
            yield self.recording.sites[low.bit_length() - 1]
            bits ^= low


# Evaluating a graph over a batch ------------------------------------------------------------------------------------


def evaluate(steps: Sequence[Any], env: dict[Node, np.ndarray]) -> None:
    """Apply equations on the host. Every array has the batch as its first axis, of length one where it is constant."""
    for step in steps:
        values = [env[x] if isinstance(x, Node) else np.asarray(x)[None] for x in step.inputs]
        env.update(zip(step.outputs, host.apply(step.primitive, step.params, values), strict=True))


def as_input(value: Any) -> Any:
    """A traced value as an input of the graph: its node, or the constant that it is known to be."""
    if isinstance(value, PathTracer):
        return value.node if value.known is None else value.known
    return value


# Densities of sites and observations --------------------------------------------------------------------------------


def observation(name: str, distribution: Any, value: Any, place: str, scale: Any) -> Observation:
    """Check an observed value against its distribution, as far as it can be known now."""
    if isinstance(distribution, Unit):
        return Observation(name, distribution, value, place, scale, check_support=False)
    if not isinstance(value, jax.Array):
        value = np.asarray(value)
        if value.dtype == object:
            raise errors.ObservedShape(
                "the observed value is not an array of numbers", site=name, where=place, remedy="Convert it with numpy.asarray"
            )
    _check_shape(name, distribution, value, place)
    inside_support = support_holds(distribution, value)
    held = as_input(inside_support)
    if isinstance(held, Node):
        return Observation(name, distribution, value, place, scale, check_support=True)
    if not np.all(held):
        raise errors.ObservedOutsideSupport(
            f"the observed value {_offender(value, np.asarray(held))} is outside the support "
            f"({support_text(distribution.support)}) of {type(distribution).__name__}",
            site=name,
            where=place,
            remedy="Check the data (a NaN?) and the distribution; mask missing values with handlers.mask or .mask()",
        )
    return Observation(name, distribution, value, place, scale, check_support=False)


def _check_shape(name: str, distribution: Any, value: Any, place: str) -> None:
    shape, event = np.shape(value), distribution.event_shape
    fits = shape[len(shape) - len(event) :] == event
    if fits:
        try:
            np.broadcast_shapes(shape[: len(shape) - len(event)], distribution.batch_shape)
        except ValueError:
            fits = False
    if not fits:
        raise errors.ObservedShape(
            f"the observed value has shape {shape}, but {type(distribution).__name__} has batch shape "
            f"{distribution.batch_shape} and event shape {event}",
            site=name,
            where=place,
            remedy="Make the observed value's last axes the event and the others broadcast with the batch",
        )


def _offender(value: Any, held: np.ndarray) -> str:
    value = np.asarray(as_input(value))
    if held.shape == value.shape and held.ndim:
        index = tuple(int(i) for i in np.argwhere(~held)[0])
        return f"{value[index]!r} at index {index if len(index) > 1 else index[0]}"
    return repr(value.item()) if value.ndim == 0 else f"of shape {value.shape}"


def support_holds(distribution: Any, value: Any) -> Any:
    """Whether a value is inside the support, elementwise; what is masked out is not asked."""
    if isinstance(distribution, dist.MaskedDistribution):
        return jnp.logical_or(support_holds(distribution.base_dist, value), jnp.logical_not(distribution._mask))
    return distribution.support(value)


def log_prob(distribution: Any, value: Any, scale: Any, check_support: bool, name: str, place: str) -> Any:
    """log f(value), summed: a traced scalar.

    NumPyro's densities assume a value inside the support and return any number outside it; `check_support` makes that
    minus infinity, as it must be for discrete values and for observations whose support is random.
    """
    try:
        terms = distribution.log_prob(value)
    except NotImplementedError as error:
        raise errors.NoDensity(
            f"{type(distribution).__name__} has no log_prob",
            site=name,
            where=place,
            remedy="Give the distribution a log_prob method, or use one that has a density",
        ) from error
    if check_support:
        terms = jnp.where(support_holds(distribution, value), terms, -jnp.inf)
    total = summed(terms)
    return total if scale is None else scale * total


def summed(terms: Any) -> Any:
    return terms if np.ndim(terms) == 0 else jnp.sum(terms)


# Words --------------------------------------------------------------------------------------------------------------


def support_text(constraint: Any) -> str:
    """A support in words: `interval(0.0, random)`."""
    while isinstance(constraint, dist.constraints.independent):
        constraint = constraint.base_constraint
    name = type(constraint).__name__.strip("_")
    words = "".join("_" + c.lower() if c.isupper() else c for c in name).strip("_")
    bounds = [getattr(constraint, b) for b in ("lower_bound", "upper_bound") if hasattr(constraint, b)]
    return f"{words}({', '.join(map(_bound_text, bounds))})" if bounds else words


def _bound_text(bound: Any) -> str:
    bound = as_input(bound)
    return "random" if isinstance(bound, Node) else _show(np.asarray(bound))


def _show(value: np.ndarray) -> str:
    if value.ndim == 0:
        return str(value.item())
    return np.array2string(value, separator=", ", threshold=8).replace("\n", "")


def _phrase(text: str, answer: np.ndarray) -> str:
    if answer.ndim == 0 and answer.dtype == bool:
        return text if answer else negated(text)
    return f"{text}: {_show(answer)}"


def _frame_of(error: BaseException) -> Any:
    """The innermost frame of the user's program in a traceback."""
    frame, trace = None, error.__traceback__
    while trace is not None:
        if belongs_to_program(trace.tb_frame):
            frame = trace.tb_frame
        trace = trace.tb_next
    return frame
