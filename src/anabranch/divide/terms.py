"""The log density of one decision sequence as a list of terms.

    log γ_k(x) = Σ_i log f(x_i | η_i) + Σ_j log g(y_j | φ_j)   where the guards hold                 (paper, equation 3)

Each summand is a term: the log prior of a site, the log density of an observation, a factor; in unconstrained
coordinates also the log Jacobian of a site. A guard is a term that is a condition. A term is a node of the graph, or a
constant, and knows the sites that it reads. The density, its parts by site, and the log likelihood of an observation
are sums over some of the terms. Any of them are computed by NumPy over a batch of executions, or by JAX for one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from anabranch.divide.distributions import elementwise_log_prob, summed
from anabranch.divide.forms import Deferred, Together, at
from anabranch.divide.graph import Graph, Node, Step, evaluate
from anabranch.divide.internals import as_input
from anabranch.divide.observation import Observation
from anabranch.divide.packing import Forms, Lanes, plan
from anabranch.divide.recording import Recording, Site
from anabranch.limits import checkpoint

__all__ = ["ByJax", "ByNumPy", "Evaluator", "Term", "Terms"]

Kind = Literal["prior", "observation", "factor", "guard", "jacobian"]


@dataclass(frozen=True, eq=False)
class Term:
    """One summand of a log density, or a guard.

    Attributes:
        kind: a site that has only one value is a factor.
        name: the address of the site, observation or factor, or the text of the decision.
        value: the summand, or the value that a guard compares: a node of the graph, or a constant.
        terms: all terms of the recording.
        met: the number of sites that the run had met by then.
        answer: the value that a guard must have.
    """

    kind: Kind
    name: str
    value: Any
    terms: Terms
    met: int
    answer: np.ndarray | None = None

    @cached_property
    def reads(self) -> frozenset[int]:
        """The numbers of the free sites that it depends on; of a concrete run, where that is not known, all before."""
        if self.terms.recording.concrete:
            return frozenset(site.index for site in self.terms.recording.sites[: self.met] if site.fixed is None)
        return self.terms.reads([self.value])


class Terms:
    """The terms of one recording, each recorded when it is first asked for."""

    def __init__(self, recording: Recording) -> None:
        self.recording, self.graph = recording, recording.trace.graph
        self.coordinates: dict[Node, Site] = {}
        """The inputs of the graph that are unconstrained coordinates of a site."""
        self._terms: dict[Site | Observation, Term] = {}
        self._elements: dict[Site | Observation, Sequence[Any]] = {}

    @property
    def prior(self) -> list[Term]:
        """One for each site."""
        return [self.of(site) for site in self.recording.sites]

    @property
    def likelihood(self) -> list[Term]:
        """One for each observation and factor."""
        return [self.of(observation) for observation in self.recording.observations]

    @cached_property
    def guards(self) -> list[Term]:
        """One for each decision that depends on free sites."""
        asked = [decision for decision in self.recording.decisions if decision.node is not None]
        return [Term("guard", d.text, d.node, self, len(self.recording.sites), d.answer) for d in asked]

    def of(self, statement: Site | Observation) -> Term:
        """The term of a site, observation or factor."""
        if statement not in self._terms:
            checkpoint()
            value = as_input(self._log_density(statement))
            if isinstance(statement, Site):
                term = Term("prior", statement.name, value, self, statement.index + 1)
            else:
                kind: Kind = "observation" if statement.is_data else "factor"
                term = Term(kind, statement.name, value, self, statement.preceding)
            self._terms[statement] = term
        return self._terms[statement]

    def _log_density(self, statement: Site | Observation) -> Any:
        site = statement if isinstance(statement, Site) else None
        if self.recording.concrete:
            return self._computed[site is None][statement.index]
        if site and site.fixed is not None and site.scale is None and site.sampled_from is site.distribution:
            constant = self.recording.log_mass(site, site.fixed)
            if constant is not None:
                return constant
        return self._traced(statement)

    def _traced(self, statement: Site | Observation) -> Any:
        return self._recorded(statement)[1]

    def elements(self, statement: Site | Observation) -> Any:
        """The log density of each part of a statement, traced; its term is their sum."""
        return self._recorded(statement)[0]

    def _recorded(self, statement: Site | Observation) -> Sequence[Any]:
        """The log density of each part of a statement, and their sum."""
        s, is_site = statement, isinstance(statement, Site)
        check = s.discrete if isinstance(s, Site) else s.check_support

        def compute() -> list[Any]:
            terms = elementwise_log_prob(s.distribution, s.value, s.scale, check, s, masked=not is_site)
            return [terms, summed(terms)]

        if s not in self._elements:
            what = "log density", check, is_site
            self._elements[s] = self.recording.traced(what, s.distribution, compute, s.value, s.scale)
        return self._elements[s]

    def reads(self, values: Iterable[Any]) -> frozenset[int]:
        """The numbers of the free sites on which nodes of the graph depend."""
        waiting, seen, sites = [x for x in values if isinstance(x, Node)], set(), set()
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                producer = self.graph.producers[node]
                waiting += [x for x in (producer.inputs if producer else ()) if isinstance(x, Node)]
                sites.add(self.recording.drawn_from.get(node) or self.coordinates.get(node))
        return frozenset(site.index for site in sites if site is not None and site.fixed is None)

    def densities(self, together: Together) -> tuple[np.ndarray, np.ndarray]:
        """The log density of each site and of each observation of a concrete run.

        The arrays are complete once `together` is finished, with what other runs have in the same form.
        """
        log_priors, log_likelihoods = np.zeros(len(self.recording.sites)), np.zeros(len(self.recording.observations))
        self._defer(self.recording.sites, log_priors, together)
        self._defer(self.recording.observations, log_likelihoods, together)
        return log_priors, log_likelihoods

    @cached_property
    def _computed(self) -> tuple[np.ndarray, np.ndarray]:
        together = Together()
        out = self.densities(together)
        together.finish()
        return out

    def _defer(self, statements: Sequence[Site | Observation], slots: np.ndarray, together: Together) -> None:
        if self.recording.invalid is not None:
            slots[:] = np.nan
            return
        for slot, statement in enumerate(statements):
            s, known = statement, statement.described
            value, check = (s.value.known, s.discrete) if isinstance(s, Site) else (s.value, s.check_support)
            deferred = None if known is None else known.log_density(value, s.scale, check)
            if deferred is not None and deferred[0].trusted:
                together.add(slots, slot, *deferred)
            else:
                slots[slot] = self._by_itself(statement, deferred)

    def _by_itself(self, statement: Site | Observation, deferred: Deferred | None) -> float:
        """The log density of a statement as the distribution gives it; the function for its form must do the same."""
        direct = float(np.asarray(as_input(self._traced(statement))))
        if deferred is None or not np.isfinite(direct):
            return direct
        function, arguments = deferred
        through_form = float(at(function, arguments))
        if np.isclose(through_form, direct, rtol=1e-5, atol=1e-5):
            function.trusted = True
            return through_form  # as everywhere else, to the last bit
        assert statement.described is not None
        statement.described.form.distrust(function)
        return direct


class Evaluator:
    """Computes some terms of a recording, and other nodes of its graph, from the values of the nodes in `have`.

    `sources` says how other inputs of the graph follow from them, as in `Graph.schedule`.
    """

    def __init__(
        self,
        graph: Graph,
        terms: Iterable[Term],
        have: Iterable[Node],
        sources: Mapping[Node, Step] | None = None,
        nodes: Iterable[Any] = (),
    ) -> None:
        self.graph = graph
        self.steps: list[Any] = graph.schedule([*(t.value for t in terms), *nodes], dict.fromkeys(have), sources)

    def by_numpy(self, env: dict[Node, np.ndarray], n: int) -> ByNumPy:
        """Over a batch of n: every array has it as its first axis, of length one where all share it."""
        evaluate(self.steps, env)
        return ByNumPy(env, n)

    def by_jax(self, lanes: Lanes) -> ByJax:
        """For one execution, to be compiled."""
        lanes.run(plan(Forms(self.graph), self.steps))
        return ByJax(lanes)


class ByNumPy:
    """Terms that NumPy has computed over a batch."""

    def __init__(self, env: Mapping[Node, np.ndarray], n: int) -> None:
        self.env, self.n = env, n

    def total(self, terms: Sequence[Term]) -> np.ndarray:
        """The sum of terms: (n,)."""
        out = np.zeros(self.n)
        for term in terms:
            out += self._value(term)
        return out

    def stacked(self, terms: Sequence[Term]) -> np.ndarray:
        """Each term in a column: (n, terms)."""
        out = np.zeros((self.n, len(terms)))
        for column, term in enumerate(terms):
            out[:, column] = self._value(term)
        return out

    def hold(self, guards: Sequence[Term]) -> np.ndarray:
        """Whether all guards hold: (n,)."""
        out = np.ones(self.n, bool)
        for guard in guards:
            met = self._value(guard) == guard.answer
            out &= np.all(met.reshape(len(met), -1), axis=1)
        return out

    def _value(self, term: Term) -> Any:
        return self.env[term.value] if isinstance(term.value, Node) else term.value


class ByJax:
    """Terms that JAX has computed for one execution."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes

    def total(self, terms: Sequence[Term]) -> Any:
        """The sum of terms."""
        return self.lanes.total([term.value for term in terms])

    def stacked(self, terms: Sequence[Term]) -> Any:
        """The terms in a row."""
        return self.lanes.stacked([term.value for term in terms])

    def hold(self, guards: Sequence[Term]) -> Any:
        """Whether all guards hold."""
        out = jnp.asarray(True)
        for guard in guards:
            out = out & jnp.all(self.lanes[guard.value] == guard.answer)
        return out
