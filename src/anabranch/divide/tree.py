"""The tree of decisions, grown by the executions that are sent through it.

An inner fork is a question of the program; its edges are the answers that have been met. Where every answer is known,
a batch is split by evaluating the slice of the graph that the question needs, without running any Python. Where a batch
arrives at a fork that nothing is known of, the program is run once: the largest part of the batch goes along, and the
others are sent on their way afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax.tree_util import tree_leaves
from scipy.special import logsumexp

from anabranch import errors
from anabranch.divide.batch import Batch, Constraints, stable_hash
from anabranch.divide.decision_node import DecisionNode, Question
from anabranch.divide.graph import Node, evaluate, with_batch_axis
from anabranch.divide.internals import as_input
from anabranch.divide.interpret import interpret
from anabranch.divide.recorder import LeavesJax, Recorder, TooManySites
from anabranch.divide.recording import Program, Recording, Site
from anabranch.divide.remedies import Departure, interpreter_message
from anabranch.divide.replay import ReplayingOracle, not_a_function
from anabranch.divide.trace_density import Scorer
from anabranch.limits import LimitReached, checkpoint

__all__ = ["Arrival", "Part", "Scores", "Tree"]

logger = logging.getLogger("anabranch")

_RUNS_TO_MEASURE, _SLOW = 5, 0.5
"""Executions, or seconds of one, after which it is said how long the interpreter takes."""
_IN_VAIN = 200_000
"""Sites of runs that all had too many, after which no more are tried: half a minute in the interpreter."""


@dataclass(frozen=True)
class Scores:
    """The log likelihood of executions (n,), and of each site, by name and shape, its values and log densities."""

    log_likelihood: np.ndarray
    sites: dict[tuple[str, tuple[int, ...]], tuple[np.ndarray, np.ndarray]]


Part = tuple[DecisionNode, Batch]
"""Executions, and the place in the tree where they are."""


@dataclass
class Arrival:
    """Executions of one batch that came to the same place: the end of a run, the remainder, or where they stopped."""

    fork: DecisionNode
    batch: Batch
    run: Recording | None = None  # of the interpreter, if that made it
    _scores: Scores | None = field(default=None, init=False, repr=False)

    def values(self) -> dict[str, np.ndarray]:
        """Every site by name, over the members."""
        if self.run is not None:
            return {name: value[None] for name, value in self.run.values.items()}
        assert self.fork.end is not None
        return self.batch.site_values(self.fork.end)

    @property
    def recording(self) -> Recording:
        """The recording that the members have followed so far."""
        recording = self.run or self.fork.end or self.fork.recording
        assert recording is not None
        return recording

    def scores(self) -> Scores:
        """What each site, and all observations together, add to the log density of the members."""
        if self._scores is None:
            self._scores = self._scored()
        return self._scores

    def _scored(self) -> Scores:
        recording, values = self.recording, self.values()
        if self.run is not None:
            log_probs, log_likelihood = Scorer(recording)(values, 1)
        else:
            if self.fork.scorer is None:
                self.fork.scorer = Scorer(recording)
            log_probs, log_likelihood = self.fork.scorer(values, len(self.batch))
        columns = zip(recording.sites, log_probs.T, strict=True)
        sites = {(site.name, site.shape): (values[site.name], column) for site, column in columns}
        return Scores(log_likelihood, sites)

    def over_members(self, term: Any) -> np.ndarray:
        """The value of a term of the recording, for each member."""
        term = as_input(term)
        values = self.batch.values(self.recording, term) if isinstance(term, Node) else with_batch_axis(term)
        return np.broadcast_to(values, (len(self.batch), *values.shape[1:]))

    def parameters(self, name: str) -> tuple[Site, list[np.ndarray]]:
        """A site, and the parameters of its distribution, for each member."""
        site = next(site for site in self.recording.sites if site.name == name)
        inputs = site.inputs if self.run is None else tree_leaves(site.distribution)
        return site, [self.over_members(x) for x in inputs]


class Tree:
    """The known part of a program. `on_end` is told of each new end."""

    def __init__(self, program: Program, on_end: Callable[[DecisionNode], None]) -> None:
        self.program, self.on_end, self.root = program, on_end, DecisionNode(interpreted=program.interpreted)
        self.runs = 0  # of the program's Python
        self.departure: Departure | None = None
        """Where the program left JAX, if it did."""
        self.ends = self.overruns = 0  # runs that ended, and that had too many sites
        self._beyond = "", ""  # name and place of the last site that was one too many
        self._said_why = self._said_invalid = False

    def send(self, n: int, seed: int, given: Constraints | None = None, count: bool = True) -> list[Arrival]:
        """Send `n` executions through the program. `count`: they are prior draws, which estimate probabilities."""
        return self.advance([(self.root, Batch(seed, given or Constraints(), np.arange(n)))], count=count)

    def advance(self, parts: Iterable[Part], count: bool = False, until: float = np.inf) -> list[Arrival]:
        """Send batches on from where they are: to the end, or to the first question after `until` observations."""
        arrivals: list[Arrival] = []
        waiting = list(parts)
        try:
            while waiting:
                checkpoint()
                fork, batch = waiting.pop()
                fork.visits += len(batch) if count else 0
                if fork.unexplored:
                    fork, batch = self._run(fork, batch, waiting, count, until)
                if fork.interpreted:
                    arrivals.extend(self._interpret(fork, batch, count))
                elif fork.question is not None and fork.observed < until:
                    self._split(fork, batch, waiting, count)
                else:
                    arrivals.append(Arrival(fork, batch))
        except LimitReached:
            # They were on their way: what they would have found is a part of the prior that was not.
            for fork, batch in waiting:
                fork.visits += len(batch) if count else 0
            raise
        return arrivals

    def _run(
        self, fork: DecisionNode, batch: Batch, waiting: list[Part], count: bool, until: float
    ) -> tuple[DecisionNode, Batch]:
        """Run the program through unknown territory, with the largest part of the batch at each question.

        A batch that is to stop at an observation stays there, and what would have come of it shows the way beyond.
        """
        scout = ExploringOracle(fork, batch, waiting, count, until)
        self.runs += 1
        recorder = Recorder(self.program, scout)
        try:
            end = scout.lead(recorder)  # which moves the scout on
            self._ended(scout.fork, end)
        except LeavesJax as left:
            scout.fork.interpreted = True
            self._say_why_interpreted(left)
        except TooManySites as beyond:
            scout.fork.remainder = True
            self._overran(*beyond.args)
        for place, site, members in scout.site_questions:
            _add_shares(place, site, members, count)
        return scout.stopped or (scout.fork, scout.batch)

    def _ended(self, fork: DecisionNode, end: Recording) -> None:
        """Enter the end of a run; not at all where a limit comes before it is known to be a path."""
        fork.end = end
        try:
            self.on_end(fork)
        except LimitReached:
            fork.end = None
            raise
        self.ends += 1

    def _say_if_invalid(self, run: Recording | None) -> None:
        """Say once that an execution is impossible because Python computed an invalid parameter for it."""
        if run is not None and run.invalid is not None and not self._said_invalid:
            self._said_invalid = True
            logger.warning("%s Such executions count as impossible.", run.invalid)

    def _overran(self, site: str, place: str) -> None:
        """Count a run with too many sites; there must be others, if there were many."""
        self.overruns += 1
        self._beyond = site, place
        if self.overruns * self.program.max_sites >= _IN_VAIN:
            self.check_some_end()

    def check_some_end(self) -> None:
        """Raise `EndlessProgram` if every run so far had too many sites."""
        if self.overruns and not self.ends:
            raise errors.EndlessProgram(
                f"every execution of {self.program.name} came here after {self.program.max_sites:,} sites, as many as "
                "max_sites allows",
                site=self._beyond[0],
                where=self._beyond[1],
                remedy="Make the loop or the recursion that draws it end with some probability, or raise max_sites",
            )

    def _say_why_interpreted(self, left: LeavesJax) -> None:
        """Keep why; it is said once it is known how long an execution takes."""
        self.departure = self.departure or left.departure

    def _say_how_slow(self, at_last: bool) -> None:
        """Say once why the program is interpreted and how long an execution takes, after a few of them at the most."""
        runs, seconds = self.program.pace.runs, self.program.pace.seconds_per_run
        if self._said_why or self.departure is None:
            return
        if at_last or runs >= _RUNS_TO_MEASURE or (seconds is not None and seconds >= _SLOW):
            self._said_why = True
            logger.warning("%s", interpreter_message(self.program.name, self.departure, seconds))

    def _split(self, fork: DecisionNode, batch: Batch, waiting: list[Part], count: bool) -> None:
        recording = fork.recording
        assert recording is not None
        assert fork.question is not None
        site = None if fork.question[0] is None else recording.sites[fork.question[0]]
        node = site.outputs[0] if site is not None else Node(fork.question[1])  # type: ignore[arg-type]
        unseen = node not in batch.env
        for answer, index in _answers(batch.values(recording, node), len(batch)):
            child = fork.child(answer.tobytes(), answer)
            waiting.append((child, batch.take(index, child.key, {node: answer})))
        if site is not None and unseen:
            _add_shares(fork, site, batch, count)

    def _interpret(self, fork: DecisionNode, batch: Batch, count: bool) -> Iterator[Arrival]:
        known = _drawn_so_far(fork, batch)
        for row in range(len(batch)):
            self._say_how_slow(at_last=False)
            # Each execution is drawn by itself here, so each needs a stream of its own.
            member = batch.take(np.array([row]), stable_hash(fork.key, int(batch.members[row])))
            given = {name: value[row if len(value) > 1 else 0] for name, value in known.items()}
            try:
                yield self._interpreted(fork, member, given, count)
            except LimitReached:
                fork.undone += len(batch) - row if count else 0
                raise
        self._say_how_slow(at_last=True)

    def _interpreted(self, fork: DecisionNode, member: Batch, given: dict[str, np.ndarray], count: bool) -> Arrival:
        """One execution by the interpreter, from a fork on."""
        checkpoint()
        self.runs += 1
        try:
            run = interpret(self.program, _prior_or_given(member, given))
        except TooManySites as beyond:
            run = None
            self._overran(*beyond.args)
        self._say_if_invalid(run)
        child = fork.child(run.signature if run else "remainder", None)
        if run is None:
            child.remainder = True
        elif child.end is None:
            self._ended(child, run)
        child.visits += 1 if count else 0
        return Arrival(child, member, run)


class ExploringOracle(ReplayingOracle):
    """An oracle that leads a batch: along known answers to a fork, and from there into the unknown."""

    def __init__(self, fork: DecisionNode, batch: Batch, waiting: list[Part], count: bool, until: float) -> None:
        self.way = fork.way()
        super().__init__([place.answer for place in self.way])  # type: ignore[misc]
        self.fork, self.batch, self.waiting, self.count, self.until = fork, batch, waiting, count, until
        self.stopped: Part | None = None
        self.site_questions: list[tuple[DecisionNode, Site, Batch]] = []

    def _check(self, recording: Recording, question: Question) -> None:
        asked_at = self.way[self.position].parent
        assert asked_at is not None
        if asked_at.question != question or _differs(asked_at.recording, recording):
            raise not_a_function(asked_at.recording, recording)

    def _beyond(self, recording: Recording, question: Question, node: Node) -> np.ndarray:
        fork = self.fork
        fork.question, fork.recording, fork.observed = question, recording, len(recording.observations)
        if fork.observed >= self.until and self.stopped is None:
            # From here on a copy goes ahead, whose draws and whose other parts are not wanted.
            self.stopped = fork, self.batch
            self.batch, self.waiting = self.batch.take(np.arange(len(self.batch)), fork.key), []
        # A site that an earlier question depends on is no longer distributed as its prior says: it is counted.
        unseen = node not in self.batch.env
        parts = _answers(self.batch.values(recording, node), len(self.batch))
        if question[0] is not None and unseen:
            self.site_questions.append((fork, recording.sites[question[0]], self.batch))
        largest = max(range(len(parts)), key=lambda i: len(parts[i][1]))
        for i, (answer, index) in enumerate(parts):
            child = fork.child(answer.tobytes(), answer)
            part = self.batch.take(index, child.key, {node: answer})
            if i == largest:
                self.fork, following = child, part
            else:
                self.waiting.append((child, part))
        self.batch = following
        self.fork.visits += len(following) if self.count else 0
        assert self.fork.answer is not None
        return self.fork.answer


def _answers(values: np.ndarray, n: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The distinct answers in a batch, each with the members that give it."""
    if len(values) == 1:
        return [(values[0], np.arange(n))]
    if values.ndim == 1:
        found, inverse = np.unique(values, return_inverse=True)
    else:
        found, inverse = np.unique(values, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    order = np.argsort(inverse, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(inverse))[:-1])
    return [(np.asarray(answer), part) for answer, part in zip(found, parts, strict=True)]


def _add_shares(fork: DecisionNode, site: Site, batch: Batch, count: bool) -> None:
    """Add to the probability of each answer what the members' parameters say of it."""
    recording = fork.recording
    assert recording is not None
    if not any(isinstance(x, Node) for x in site.inputs):
        for answer_key, child in fork.children.items():
            if answer_key not in fork.shares and child.answer is not None:
                log_mass = recording.log_mass(site, child.answer)
                assert log_mass is not None
                fork.shares[answer_key] = float(log_mass), 1
        return
    value, result = recording.mass_function(site)
    parameters = {x: batch.values(recording, x) for x in site.inputs if isinstance(x, Node)}
    # Of one member, or of copies of one, nothing can be said by looking: its parameters may be its own.
    constant = all(len(v) == 1 for v in parameters.values()) and not _is_random(recording, parameters)
    if not (count or constant):
        return
    if constant:
        fork.parameters = [parameters]
    else:
        fork.parameters.append(parameters)
    for answer_key, child in fork.children.items():
        total, n = fork.shares.get(answer_key, (-np.inf, 0))
        if n and constant:
            continue
        assert child.answer is not None
        # An answer met for the first time is asked of the members that came before, too.
        for known in fork.parameters if not n else fork.parameters[-1:]:
            env = {**known, value: child.answer[None]}
            evaluate(recording.trace.graph.schedule([result], env), env)
            terms = env[result]
            total, n = float(np.logaddexp(total, logsumexp(terms))), n + len(terms)
        fork.shares[answer_key] = (total, n)


def _is_random(recording: Recording, nodes: Iterable[Node]) -> bool:
    """Whether a site that is not fixed is behind some of the nodes."""
    fixed = {site.outputs[0]: site for site in recording.sites if site.fixed is not None}
    return any(isinstance(step, Site) for step in recording.trace.graph.schedule(nodes, fixed, recording.drawn_from))


def _drawn_so_far(fork: DecisionNode, batch: Batch) -> dict[str, np.ndarray]:
    """The sites that were needed to come here, by name."""
    recording = fork.parent.recording if fork.parent is not None else None
    if recording is None:
        return {}
    nodes = {site.outputs[0]: site.name for site in recording.sites}
    return {nodes[node]: value for node, value in batch.env.items() if node in nodes}


def _prior_or_given(member: Batch, given: dict[str, np.ndarray]) -> Callable[[Site, list[np.ndarray]], np.ndarray]:
    def value(site: Site, parameters: list[np.ndarray]) -> np.ndarray:
        if site.name in given:
            return given[site.name]
        return member.draw(site, parameters)[0]

    return value


def _differs(old: Recording | None, new: Recording) -> bool:
    return old is not None and old.addresses[: len(new.sites)] != new.addresses
