"""The recording of one run of a program: its graph, sites, decisions and observations."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import jax
import numpy as np
import numpyro.distributions as dist
from jax.tree_util import tree_flatten, tree_unflatten
from numpyro.distributions import biject_to

from anabranch import errors
from anabranch.divide import distributions
from anabranch.divide.execution_times import ExecutionTimes
from anabranch.divide.forms import Described, Together, described, structure
from anabranch.divide.graph import Node, evaluate
from anabranch.divide.internals import PathTrace, PathTracer, as_input, is_key
from anabranch.divide.kept import Kept, RecentRecordings
from anabranch.divide.masses import computed_log_mass
from anabranch.divide.observation import Observation
from anabranch.divide.repetitions import Repetitions, Signature
from anabranch.label import Label
from anabranch.limits import holding
from anabranch.numpyro_internals import ONE_AT_A_TIME, has_bijection

__all__ = ["Choices", "Decision", "Program", "Recording", "Site", "copied", "mapped"]


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
    sequential: bool = False
    """Whether executions may stop at an observation, whose density must then not rest on what is decided later."""
    pace: ExecutionTimes = field(default_factory=ExecutionTimes, compare=False, repr=False)
    """How long the interpreter takes for an execution."""
    repetitions: Repetitions = field(default_factory=Repetitions, compare=False, repr=False)
    """Which paths are recorded twice."""
    recent: RecentRecordings = field(default_factory=RecentRecordings, compare=False, repr=False)
    """The recordings that are kept."""

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """An argument of a program with a change of what it holds in lists, tuples and dictionaries."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(part, change) for part in value))
    if type(value) in (list, tuple):
        return type(value)(mapped(part, change) for part in value)
    if type(value) is dict:
        return {name: mapped(part, change) for name, part in value.items()}
    return change(value)


def copied(value: Any) -> Any:
    """An array, or what pandas makes of arrays, copied; anything else as it is.

    So is a file mapped to memory for reading alone: it may be larger than the memory, and nobody writes to it here.
    """
    if isinstance(value, np.memmap) and not value.flags.writeable:
        return value
    is_array = isinstance(value, np.ndarray) or (hasattr(value, "to_numpy") and hasattr(value, "copy"))
    return value.copy() if is_array else value


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
    described: Described | None = None
    """The distribution as its form and its parameters, where they are known."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.aval.shape

    @cached_property
    def discrete(self) -> bool:
        return self.described.form.discrete if self.described else bool(self.support.is_discrete)

    @cached_property
    def support(self) -> Any:
        """The support of the distribution, which may be computed from its parameters."""
        with self.value._trace.current():
            return self.distribution.support

    @cached_property
    def unconstrained_shape(self) -> tuple[int, ...]:
        """The shape of the site's coordinates: none where it is fixed, one fewer for a simplex."""
        if self.discrete:
            return self.shape
        if self.described is None:
            return self._unconstrained_shape()
        form = self.described.form
        if form.unconstrained_shape is None:
            form.unconstrained_shape = self._unconstrained_shape()
        return form.unconstrained_shape

    def _unconstrained_shape(self) -> tuple[int, ...]:
        support = distributions.base_support(self.support)
        if not has_bijection(support):
            raise errors.NoTransform(
                f"no bijection from the real numbers to its support, {distributions.support_text(support)}, is known",
                at=self,
                remedy="Register one with numpyro.distributions.biject_to, or write the site as a function of another",
            )
        # A constraint on single numbers has a bijection number by number; the others have no parameters.
        return self.shape if support.event_dim == 0 else tuple(biject_to(support).inverse_shape(self.shape))

    @property
    def space(self) -> tuple[str, tuple[int, ...], bool, tuple[int, ...]]:
        """What the site must share with another for its values to mean the same: name, shape, and coordinates."""
        return self.name, self.shape, self.discrete, self.unconstrained_shape

    @cached_property
    def _flat(self) -> tuple[list[Any], Any]:
        if self.described is not None:
            return self.described.leaves, self.described.form.tree
        return tree_flatten(self.distribution)

    @cached_property
    def inputs(self) -> list[Any]:
        """The parameters of the distribution: nodes of the graph, or constants.

        A node even where a later decision made its value known: other executions may come here and decide otherwise.
        """
        return [as_input(x) if getattr(x, "node", None) is None else x.node for x in self._flat[0]]

    @cached_property
    def sampled_from(self) -> Any:
        """The distribution that draws the value: without the mask that takes it out of the density."""
        return distributions.unwrapped(self.distribution, dist.MaskedDistribution)

    @property
    def outputs(self) -> tuple[Node, ...]:
        return (self.value.node,)

    def with_parameters(self, parameters: Sequence[Any]) -> Any:
        """The distribution with other parameters in place of the traced ones."""
        return tree_unflatten(self._flat[1], parameters)


@dataclass(frozen=True, eq=False, slots=True)
class Decision:
    """A question that Python asked and the answer that this path gives. `node` is None where a site was fixed."""

    site: int | None
    node: Node | None
    answer: np.ndarray
    text: str
    where: str
    source: tuple[str, str] = ("", "")
    """The expression that asked, and the line that it stands in."""

    def __str__(self) -> str:
        return self.text if self.site is not None else f"{self.text} ({self.where})"


T = TypeVar("T")
Choices = dict[str, np.ndarray] | list[np.ndarray]
_log_masses: dict[Any, np.ndarray] = {}


class Recording:
    """The recording of one run: a graph, or, if it is `concrete`, with a value for everything.

    In a run of the interpreter every site has its value when it is met, so that nothing is left to compute.
    """

    def __init__(self, program: Program, trace: PathTrace) -> None:
        self.program, self.trace = program, trace
        self.kept = Kept(self)
        self.length: int | None = None  # of the graph at the end of the run: what is computed with it adds to it
        self.sites: list[Site] = []
        self.drawn_from: dict[Node, Site] = {}
        self.observations: list[Observation] = []
        self.decisions: list[Decision] = []
        self.deterministics: dict[str, Any] = {}
        self.result: Any = None
        self.plates: dict[str, tuple[str | None, ...]] = {}
        """For each site and observation inside plates the plate of each of its axes."""
        self.asked: set[int] = set()
        self.concrete = False
        self.invalid: errors.InvalidParameter | None = None  # of a concrete run, whose density is then no number
        self._statements: list[tuple[Site | Observation, int]] = []
        self._mass_functions: dict[int, tuple[Node, Any]] = {}
        self._made: dict[Any, Any] = {}

    def once(self, make: Callable[[Recording], T]) -> T:
        """What a class makes of the recording; made once."""
        if make not in self._made:
            self._made[make] = make(self)
        return self._made[make]

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(site.name for site in self.sites)

    @property
    def values(self) -> dict[str, np.ndarray]:
        """The value of each site by name, if the run is concrete."""
        return {site.name: site.value.known for site in self.sites}

    @property
    def choices(self) -> Choices:
        """What another run needs to be the same: the values of all sites if it is concrete, else the answers."""
        return self.values if self.concrete else [decision.answer for decision in self.decisions]

    @property
    def free(self) -> list[Site]:
        """The sites that are variables of the path."""
        return [site for site in self.sites if site.fixed is None]

    @property
    def fixed(self) -> dict[str, np.ndarray]:
        """The values to which sites are fixed, by name."""
        return {site.name: site.fixed for site in self.sites if site.fixed is not None}

    @cached_property
    def constants(self) -> dict[str, np.ndarray | Label]:
        """The fixed sites, and the deterministics that they decide, by name; of a recording that is complete."""
        out: dict[str, np.ndarray | Label] = dict(self.fixed)
        known: dict[Node, Any] = {site.outputs[0]: site.fixed[None] for site in self.sites if site.fixed is not None}
        for name, value in {} if self.concrete else self.deterministics.items():
            asked = as_input(value)
            if isinstance(asked, Node):
                try:
                    evaluate(self.trace.graph.schedule([asked], known), known)
                except KeyError:  # a site that is not fixed is behind it
                    continue
                asked = known[asked][0]
            if isinstance(asked, Label):
                out[name] = asked
            elif isinstance(asked, np.ndarray | np.generic | int | float | jax.Array) and not is_key(asked):
                out[name] = np.asarray(asked)
        return out

    @cached_property
    def columns(self) -> dict[str, slice]:
        """Where the coordinates of each free site are in a point, by name; of a recording that is complete."""
        ends = np.cumsum([0, *(np.prod(site.unconstrained_shape, dtype=int) for site in self.free)]).tolist()
        return {site.name: slice(*each) for site, each in zip(self.free, pairwise(ends), strict=True)}

    @property
    def dim(self) -> int:
        """The number of coordinates of a point."""
        return max((columns.stop for columns in self.columns.values()), default=0)

    @cached_property
    def signature(self) -> Signature:
        """What two decision sequences must share to be one path: addresses, spaces, and the values fixed."""
        same = self.program.recent.same
        return Signature(
            same((s.name, s.shape, s.discrete, s.unconstrained_shape if s.fixed is None else s.fixed.tobytes()))
            for s in self.sites
        )

    @cached_property
    def traits(self) -> dict[str, list[Any]]:
        """What each statement is and what led to it: names, nodes and constants, by address."""
        out, start = {}, 0
        for statement, end in self._statements:
            out[statement.name] = [type(statement.distribution).__name__, *statement.inputs]
            for equation in filter(None, self.trace.graph.producers[start:end]):
                out[statement.name] += [equation.primitive.name, *equation.inputs]
            start = end
        return out

    def differences(self, other: Recording) -> list[str]:
        """The addresses at which another run with the same decisions did something else; all should be the same."""
        names = dict.fromkeys([*other.traits, *self.traits])
        pairs = [(name, self.traits.get(name, []), other.traits.get(name, [])) for name in names]
        return [name for name, x, y in pairs if len(x) != len(y) or not all(map(_same, x, y))]

    def add(self, statement: Site | Observation) -> None:
        """Keep a site or an observation that the run came to."""
        self._statements.append((statement, len(self.trace.graph)))
        if isinstance(statement, Site):
            self.sites.append(statement)
            self.drawn_from[statement.outputs[0]] = statement
        else:
            statement.index, statement.preceding = len(self.observations), len(self.sites)
            self.observations.append(statement)

    def traced(self, what: Hashable, distribution: Any, compute: Callable[[], Sequence[Any]], *values: Any) -> Any:
        """The results of a computation with a distribution and values, recorded; as before if it was met before."""
        trace = self.trace
        with holding(ONE_AT_A_TIME), nullcontext() if trace.is_current() else trace.current():
            known = structure(distribution)
            return compute() if known is None else trace.repeated((what, known[0]), compute, (*values, *known[1]))

    def traced_log_mass(self, site: Site, value: Any) -> Any:
        """The log probability of drawing a value of a discrete site, recorded."""
        drawn = site.sampled_from

        def compute() -> list[Any]:
            return [distributions.summed(distributions.elementwise_log_prob(drawn, value, None, True, site))]

        return self.traced("log mass", drawn, compute, value)[0]

    def log_mass(self, site: Site, value: np.ndarray) -> np.ndarray | None:
        """The log probability of drawing a value of a discrete site with constant parameters; None if they are not.

        A grammar draws from the same few distributions at every node, so what was computed once is kept.
        """
        if any(isinstance(x, Node) or is_key(x) for x in site.inputs):
            return None
        leaves = tuple((np.shape(x), np.asarray(x).dtype, np.asarray(x).tobytes()) for x in site.inputs)
        key = (site._flat[1], leaves, value.tobytes())
        try:
            kept = _log_masses.get(key)
        except (TypeError, ValueError):  # what else the distribution holds cannot be compared
            return computed_log_mass(self, site, value)
        if kept is None:
            if len(_log_masses) >= 10_000:
                _log_masses.clear()
            kept = _log_masses[key] = computed_log_mass(self, site, value)
        return kept

    def drawn_log_masses(self, together: Together) -> np.ndarray:
        """The log probability of drawing the values that the fixed sites have, in a run in which all is known."""
        sites = [site for site in self.sites if site.fixed is not None]
        slots = np.zeros(len(sites))
        for slot, site in enumerate(sites):
            source = site.described if site.sampled_from is site.distribution else described(site.sampled_from)
            waiting = None if source is None else source.log_density(site.value.known, None, True)
            if waiting is None:
                slots[slot] = float(np.asarray(as_input(self.traced_log_mass(site, site.value.known))))
            else:
                together.add(slots, slot, *waiting)
        return slots

    def mass_function(self, site: Site) -> tuple[Node, Any]:
        """The log probability of drawing a value of a discrete site: the node of the value, and of the result."""
        if site.index not in self._mass_functions:
            value = self.trace.input(site.shape, np.int64)
            self._mass_functions[site.index] = value.node, as_input(self.traced_log_mass(site, value))
        return self._mass_functions[site.index]

    def describe(self) -> str:
        """The decisions, in words."""
        asked = [f"{s.name} = {distributions.show_value(s.value.known)}" for s in self.sites if s.index in self.asked]
        return ", ".join([*map(str, self.decisions), *asked]) or "no decision was taken yet"


def _same(x: Any, y: Any) -> bool:
    """Equal, up to the rounding of a constant that was computed once with NumPy and once by XLA."""
    if x is y:
        return True
    if type(x) is not type(y) and (isinstance(x, str | Node) or isinstance(y, str | Node)):
        return False
    if isinstance(x, str | Node) or is_key(x):
        return isinstance(y, type(x)) and bool(np.all(x == y))
    x, y = np.asarray(x), np.asarray(y)
    if x.shape != y.shape:
        return False
    if np.issubdtype(x.dtype, np.inexact) or np.issubdtype(y.dtype, np.inexact):
        return np.allclose(x, y, rtol=1e-6 if np.float32 in (x.dtype, y.dtype) else 1e-10, atol=0, equal_nan=True)
    return np.array_equal(x, y)
