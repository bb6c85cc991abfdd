"""Run a program once, and record what it does.

A `Recorder` runs the program under a `PathTrace`. A latent site becomes an input of the graph; an observation and a
factor become terms of the likelihood. When Python asks a random value for a concrete answer, the recorder first fixes
the discrete sites that the value depends on (paper, appendix E, "splitting on discrete variables", found here by
looking at the graph), and if that does not settle the question, keeps the answer of an `Oracle` as a guard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.primitives import Messenger

from anabranch import errors
from anabranch.divide import distributions, forms
from anabranch.divide.graph import Node, evaluate
from anabranch.divide.internals import PathTrace, PathTracer, as_input
from anabranch.divide.missing import missing_values
from anabranch.divide.observation import Held, Observation, as_array, checked_observation, held
from anabranch.divide.recording import Decision, Program, Recording, Site, mapped
from anabranch.divide.remedies import Departure, departure
from anabranch.divide.run_errors import explained, unsupported
from anabranch.divide.source_location import negated, question, source_line, user_frame, user_location, where
from anabranch.divide.terms import Terms
from anabranch.divide.watchdog import Watch
from anabranch.errors import Place
from anabranch.label import Label, is_label
from anabranch.limits import checkpoint, holding
from anabranch.numpyro_internals import ONE_AT_A_TIME, caller_of_prng_key, control_flow

__all__ = ["LeavesJax", "Oracle", "Recorder", "TooManySites"]

_OPEN, _KNOWN = (0.5, 1_000), (50.0, 5_000)
"""Questions since the last site, for each of `max_sites`, and at least, after which a program is endless.

One whose answer becomes a guard is recorded, and the longer the recording, the longer it takes: 5,000 take two or three
seconds. One whose answer is known takes some ten microseconds, and a simulator may ask many.
"""
_NO_KEY = np.zeros(2, np.uint32)


class LeavesJax(BaseException):
    """The program needs the value of a random real outside JAX. Not an `Exception`: the program must not catch it."""

    def __init__(self, where: str, what: str, departure: Departure) -> None:
        super().__init__(where, what)
        self.where, self.what, self.departure = where, what, departure


class TooManySites(BaseException):
    """The run met more than `max_sites` sites; its argument is the place of the last. Not an
    `Exception`: the program must not catch it."""


class Oracle(Protocol):
    """Gives the answers that a recording follows."""

    def assign(self, recording: Recording, site: Site) -> np.ndarray | None:
        """A value for the site at once, or None to leave it open."""

    def choose_value(self, recording: Recording, site: Site) -> np.ndarray:
        """The value to fix a discrete site to."""

    def choose_answer(self, recording: Recording, node: Node) -> np.ndarray:
        """The answer to a question that depends on sites that are not fixed."""


class Recorder(Messenger):
    """Runs a program once, under an oracle, and returns the `Recording`."""

    def __init__(self, program: Program, oracle: Oracle) -> None:
        super().__init__()
        self.program, self.oracle = program, oracle
        self.recording = Recording(program, PathTrace(self))
        self._handlers = {
            "sample": self._sample,
            "deterministic": self._deterministic,
            "plate": self._plate,
            "prng_key": self._key,
            "param": self._unsupported,
            "mutable": self._unsupported,
            "control_flow": self._control_flow,
        }
        self._seen: dict[str, str] = {}
        self._validates = False
        self._questions = {_OPEN: 0, _KNOWN: 0}  # since the last site
        self._watch = Watch()
        self._interruption: BaseException | None = None
        self._open = 0  # the sites that are not fixed, as bits
        self._askable = 0  # the discrete sites with an assigned value that nothing was asked about so far, as bits

    def run(self) -> Recording:
        recording, program = self.recording, self.program
        with holding(ONE_AT_A_TIME):
            self._validates = dist.Distribution._validate_args
            # NumPyro's check of parameters computes with traced ones, too, and cannot use the result: ours skips them.
            with numpyro.validation_enabled(False), recording.trace.current(), explained(program, recording), self:
                # Views, which jax does not know: it may remember an array of the user's in another precision.
                args, kwargs = (mapped(part, _view) for part in (program.args, program.kwargs))
                recording.result = self._watch.run(program.function, *args, **kwargs)
                if self._interruption is not None:
                    raise self._interruption  # the program caught it
        recording.length = len(recording.trace.graph)
        return recording

    def process_message(self, msg: dict[str, Any]) -> None:
        handler = self._handlers.get(msg["type"])
        if handler is not None:
            with self._not_to_be_caught(), self._watch:
                handler(msg)
            msg["stop"] = True

    @contextmanager
    def _not_to_be_caught(self) -> Iterator[None]:
        """Keep the exception that ends the run, for a program that catches it and goes on."""
        try:
            yield
        except BaseException as error:
            self._interruption = error
            raise

    def _sample(self, msg: dict[str, Any]) -> None:
        at = Place(msg["name"], user_location())
        missing = missing_values(msg, at) if msg["value"] is None else None
        if missing is not None and missing.distribution is None:
            self._claim(at)
            msg["value"] = jnp.zeros(missing.shape)
            return
        distribution = distributions.private_copy(msg["fn"] if missing is None else missing.distribution)
        self._claim(at)
        known = forms.described(distribution)
        if not (self.recording.concrete and known is not None and forms.parameters_hold(known)):
            self._check_parameters(distribution, at)
        if msg["kwargs"].get("sample_shape"):
            distribution = distribution.expand_by(tuple(int(size) for size in msg["kwargs"]["sample_shape"]))
            known = forms.described(distribution)
        if msg["cond_indep_stack"]:
            self.recording.plates[at.name] = _plates(msg["cond_indep_stack"], distribution)
        if msg["value"] is not None:  # observed, or given by a handler inside the program
            msg["value"] = as_array(at, msg["value"])
            observed = checked_observation(at, distribution, msg["value"], msg["scale"], partial(self._held, known))
            if observed.fault is not None and not (self.recording.decisions or self.recording.asked):
                raise observed.fault
            observed.described = known
            self._add(observed)
        elif isinstance(certain := distributions.unwrapped(distribution), dist.Delta):
            # All its mass is in one point: nothing to infer, and the value is a function of what came before.
            value = jnp.broadcast_to(certain.v, distribution.shape()) if distribution.shape() else certain.v
            msg["value"] = self.recording.deterministics[at.name] = value
            point = Observation(at.name, distribution, value, at.where, msg["scale"], check_support=False)
            point.described = known
            density = as_input(certain.log_density)
            point.adds_nothing = not isinstance(density, Node) and not np.any(density)
            self._add(point)
        else:
            value = self._latent(at, distribution, known, msg["scale"])
            msg["value"] = value if missing is None else missing.spread(value)

    def _held(self, known: forms.Described | None, distribution: Any, value: Any) -> Held:
        """Which parts of a value are inside the support; remembered, since all paths observe the same values."""
        by_form = forms.held(known, value)
        if by_form is not None or self.recording.concrete:
            return by_form or held(distribution, value)
        result: Held = self.recording.traced("support", distribution, lambda: held(distribution, value), value)
        return result

    def _add(self, observation: Observation) -> None:
        self.recording.add(observation)
        if self.program.sequential and not self.recording.concrete:
            self.recording.once(Terms).of(observation)  # before anything that is decided later

    def _check_parameters(self, distribution: Any, at: Place) -> None:
        """Refuse invalid parameters; where Python made plain numbers of random ones, the execution is impossible."""
        try:
            distributions.check_parameters(distribution, at, self._validates)
        except errors.InvalidParameter as error:
            if not self.recording.concrete:
                raise
            self.recording.invalid = error

    def _claim(self, at: Place) -> None:
        """Refuse an address that was used before, or a site inside a transformation."""
        checkpoint()
        if not self.recording.trace.is_current():
            raise errors.SiteInsideTransformation(
                "it is inside a JAX transformation (jit, vmap, grad, scan, cond), which runs its function once for "
                "many values",
                at=at,
                remedy="Move it outside, use a vector site instead of vmap, or a Python loop instead of scan",
            )
        if at.name in self._seen:
            raise errors.DuplicateAddress(
                f"the address was used before, at {self._seen[at.name]}",
                at=at,
                remedy="Give each site of one execution its own name, or leave the name out",
            )
        self._seen[at.name] = at.where

    def _latent(self, at: Place, distribution: Any, known: forms.Described | None, scale: Any) -> PathTracer:
        recording = self.recording
        index, self._questions = len(recording.sites), dict.fromkeys(self._questions, 0)
        if index >= self.program.max_sites:
            raise TooManySites(at)
        if distributions.is_taken_out(distribution):
            _check_taken_out(distribution, at)
            known = None  # the form of a masked distribution is that of an observation
        discrete, shape = _space(distribution, at) if known is None else (known.form.discrete, known.form.shape)
        value = recording.trace.input(shape, np.int64 if discrete else np.float64, 1 << index)
        site = Site(index, at.name, distribution, at.where, scale, value, described=known)
        recording.add(site)
        self._open |= 1 << index
        assigned = self.oracle.assign(recording, site)
        if assigned is not None:
            value.known = assigned
            self._open &= ~(1 << index)
            if self.program.split.get(at.name):
                recording.asked.add(index)
            elif discrete and self.program.split.get(at.name, True):
                self._askable |= 1 << index
        elif self.program.split.get(at.name):
            if not discrete:
                raise errors.BadSetting(
                    "split names it, and it is continuous; only a discrete site has values to split on",
                    at=at,
                    remedy="Leave it out of split",
                )
            self._fix(site)
        return value

    def _deterministic(self, msg: dict[str, Any]) -> None:
        self._claim(Place(msg["name"], user_location()))
        value = msg["value"]
        self.recording.deterministics[msg["name"]] = Label(value) if is_label(value) else value

    def _plate(self, msg: dict[str, Any]) -> None:
        size = msg["args"][0]
        if msg["value"] is None or len(msg["value"]) != size:  # the indices may be given by a handler
            unsupported("a plate with a subsample", msg["name"])

    def _key(self, msg: dict[str, Any]) -> None:
        """A key is asked for by the program, or by a handler for a site that it lets no other handler see."""
        caller, hidden_site = caller_of_prng_key()
        if caller == "uncondition":
            msg["value"] = _NO_KEY  # the site is latent now, and needs none
        elif caller == "block":
            unsupported("a site that handlers.block hides", hidden_site)
        else:
            self._unsupported(msg)

    def _control_flow(self, msg: dict[str, Any]) -> None:
        """A `scan` or `cond` of NumPyro is run as a loop or branch of Python, after this message."""
        function = control_flow(msg)
        if function is None:
            unsupported("control_flow with values given from outside", None)
        msg["fn"] = function

    def _unsupported(self, msg: dict[str, Any]) -> None:
        unsupported(msg["type"], msg.get("name"))

    def asked(self, tracer: PathTracer) -> None:
        """A known value was used as a concrete one: the sites behind it decide the path."""
        self._watch.progressed()
        self._count_question(_KNOWN)
        if tracer.sites & self._askable:
            self.recording.asked.update(site.index for site in self._sites_in(tracer.sites & self._askable))
            self._askable &= ~tracer.sites

    def decide(self, tracer: PathTracer) -> np.ndarray:
        with self._not_to_be_caught(), self._watch:
            return self._decided(tracer)

    def _decided(self, tracer: PathTracer) -> np.ndarray:
        for site in self._to_split(tracer):
            self._fix(site)
        open_sites = list(self._sites_in(tracer.sites & self._open))
        self._count_question(_OPEN if open_sites else _KNOWN)
        if not open_sites:
            return self._settled(tracer)
        frame = user_frame()
        if np.issubdtype(tracer.aval.dtype, np.inexact) and not all(site.discrete for site in open_sites):
            raise LeavesJax(where(frame), question(frame), departure(frame))
        node = tracer.node
        assert node is not None
        answer = self.oracle.choose_answer(self.recording, node)
        asked = question(frame)
        text = f"{asked}: {distributions.show_value(answer)}"
        if answer.ndim == 0 and answer.dtype == bool:
            text = asked if answer else negated(asked)
        self.recording.decisions.append(Decision(None, node, answer, text, where(frame), (asked, source_line(frame))))
        return answer

    def same_in(self, other: Recorder, sites: int) -> bool:
        """Whether these sites are known in another run, and have the same values there."""
        theirs = {site.name: site.value.known for site in other.recording.sites}
        pairs = [(theirs.get(site.name), site.value.known) for site in self._sites_in(sites)]
        return all(known is not None and np.array_equal(known, own) for known, own in pairs)

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
        self.recording.decisions.append(
            Decision(site.index, None, value, f"{site.name} = {distributions.show_value(value)}", site.where)
        )

    def _settled(self, tracer: PathTracer) -> np.ndarray:
        """The value of a node all of whose sites are fixed."""
        env: dict[Node, np.ndarray] = {site.value.node: site.value.known[None] for site in self._sites_in(tracer.sites)}
        evaluate(self.recording.trace.graph.schedule([tracer.node], env), env)
        return env[tracer.node][0]

    def _count_question(self, kind: tuple[float, int]) -> None:
        """Stop a loop that asks for ever without a site; one that draws is stopped by `max_sites`."""
        checkpoint()
        self._questions[kind] += 1
        if self._questions[kind] > max(kind[0] * self.program.max_sites, kind[1]):
            self._interruption = errors.EndlessProgram(
                f"{self._questions[kind]:,} questions were asked since the last site was drawn",
                where=user_location(),
                remedy="Make the loop end, or raise max_sites, by which the questions are bounded, too",
            )
            raise self._interruption

    def _sites_in(self, bits: int) -> Iterator[Site]:
        while bits:
            low = bits & -bits
            yield self.recording.sites[low.bit_length() - 1]
            bits ^= low


def _view(value: Any) -> Any:
    return value.view() if type(value) is np.ndarray else value


def _space(distribution: Any, at: Place) -> tuple[bool, tuple[int, ...]]:
    """Whether a site with this distribution is discrete, and the shape of its value."""
    support = getattr(distribution, "support", None)
    if support is None:
        raise errors.NoTransform(
            f"{type(distribution).__name__} does not say what its support is",
            at=at,
            remedy="Give the distribution a support",
        )
    return bool(support.is_discrete), tuple(int(size) for size in distribution.shape())


def _check_taken_out(distribution: Any, at: Place) -> None:
    """Refuse a mask on the prior of a latent site, unless its values are finitely many."""
    support = distribution.support
    if not (support.is_discrete and distributions.is_finite(support)):
        raise errors.ImproperSite(
            "a mask takes the prior of this latent site out of the density, and what is left has no finite mass",
            at=at,
            remedy="Put the mask on the observations alone, or use ImproperUniform if a flat prior is meant",
        )


def _plates(frames: Iterable[Any], distribution: Any) -> tuple[str | None, ...]:
    """The name of the plate of each axis of a site."""
    names = {frame.dim - len(distribution.event_shape): frame.name for frame in frames}
    return tuple(names.get(axis) for axis in range(-len(distribution.shape()), 0))
