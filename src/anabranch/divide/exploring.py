"""Lead a batch of executions through a run of the program: along known answers to a node, and on from there.

At each question the batch is split by its answers, and one part goes on. Where the answers are known and the recording
was dropped, a run leads there all the same: what it records takes the place of what was dropped. It finds what is found
without it, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from scipy.special import logsumexp

from anabranch.divide.batch import Batch
from anabranch.divide.decision_node import DecisionNode, Question
from anabranch.divide.executions import Executions
from anabranch.divide.graph import Node, evaluate
from anabranch.divide.recording import Recording, Site
from anabranch.divide.replay import ReplayingOracle, not_a_function

__all__ = ["ExploringOracle", "add_shares", "answers_of"]


class ExploringOracle(ReplayingOracle):
    """An oracle that leads a batch along known answers to a node, and explores from there."""

    def __init__(self, node: DecisionNode, batch: Batch, waiting: list[Executions], count: bool, until: float) -> None:
        self.way = node.way()
        super().__init__([each.answer for each in self.way])  # type: ignore[misc]
        self.node, self.batch, self.waiting, self.count, self.until = node, batch, waiting, count, until
        self.stopped: Executions | None = None
        self.is_new = node.unexplored
        """Whether the run comes where none has been."""
        self._passed: list[DecisionNode] = []
        self.site_questions: list[tuple[DecisionNode, Site, Batch]] = []

    def _check(self, recording: Recording, question: Question) -> None:
        asked_at = self.way[self.position].parent
        assert asked_at is not None
        old = asked_at.kept
        if asked_at.question != question or (old and old.addresses[: len(recording.sites)] != recording.addresses):
            raise not_a_function(asked_at.recording, recording)

    def _beyond(self, recording: Recording, question: Question, asked: Node) -> np.ndarray:
        return self._pass(recording, question, asked) if self.node.kept else self._explore(recording, question, asked)

    def _pass(self, recording: Recording, question: Question, asked: Node) -> np.ndarray:
        """Lead the batch past a node whose answers are known: the part that goes on is the one that a tree would
        send on first."""
        node = self.node
        if node.question != question:
            raise not_a_function(node.recording, recording)
        self._passed.append(node)
        parts = self._parts(recording, question, asked)
        *others, following = [(node.child(answer.tobytes(), answer), answer, index) for answer, index in parts]
        for child, answer, index in others:
            self.waiting.append(Executions(child, self.batch.take(index, child.key, {asked: answer})))
        child, answer, index = following
        return self._follow(child, self.batch.take(index, child.key, {asked: answer}))

    def _explore(self, recording: Recording, question: Question, asked: Node) -> np.ndarray:
        """Ask at a node that is unexplored, and go on with the largest part of the batch."""
        node = self.node
        same = recording.program.recent.same
        node.question, node.kept, node.observed = same(question), recording.kept, len(recording.observations)
        if question[0] is not None:
            site = recording.sites[question[0]]
            node.asked = same((site.name, site.shape))
        if node.observed >= self.until and self.stopped is None:
            # From here on a copy goes ahead, whose draws and whose other parts are not wanted.
            self.stopped = Executions(node, self.batch)
            self.batch, self.waiting = self.batch.take(np.arange(len(self.batch)), node.key), []
        parts = self._parts(recording, question, asked)
        largest = max(range(len(parts)), key=lambda i: len(parts[i][1]))
        for i, (answer, index) in enumerate(parts):
            child = node.child(answer.tobytes(), answer)
            part = self.batch.take(index, child.key, {asked: answer})
            if i == largest:
                following = child, part
            else:
                self.waiting.append(Executions(child, part))
        return self._follow(*following)

    def _parts(self, recording: Recording, question: Question, asked: Node) -> list[tuple[np.ndarray, np.ndarray]]:
        """The answers in the batch, each with the members that give it."""
        # A site that an earlier question depends on is no longer distributed as its prior says: it is counted.
        unseen = asked not in self.batch.env
        parts = answers_of(self.batch.values(recording, asked), len(self.batch))
        if question[0] is not None and unseen:
            self.site_questions.append((self.node, recording.sites[question[0]], self.batch))
        return parts

    def _follow(self, child: DecisionNode, part: Batch) -> np.ndarray:
        self.node, self.batch = child, part
        self.is_new |= child.unexplored
        child.visits += len(part) if self.count else 0
        assert child.answer is not None
        return child.answer

    def arrived(self, recording: Recording) -> bool:
        """The run is over: what it recorded is that of the nodes on the way; whether it is new where it ends."""
        known = self.node.kept
        if known is not None:
            known.complete(recording)
        for node in self._passed:
            node.kept = recording.kept
        return known is None


def answers_of(values: np.ndarray, n: int) -> list[tuple[np.ndarray, np.ndarray]]:
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


def add_shares(node: DecisionNode, site: Site, batch: Batch, count: bool) -> None:
    """Add to the probability of each answer what the members' parameters say of it."""
    recording = node.recording
    assert recording is not None
    if not any(isinstance(x, Node) for x in site.inputs):
        node.constant = True
        for child in node.children.values():
            if child.share is None and child.answer is not None:
                log_mass = recording.log_mass(site, child.answer)
                assert log_mass is not None
                child.share = recording.program.recent.same((float(log_mass), 1))
        return
    value, result = recording.mass_function(site)
    parameters = {x: batch.values(recording, x) for x in site.inputs if isinstance(x, Node)}
    # Of one member, or of copies of one, nothing can be said by looking: its parameters may be its own.
    constant = all(len(v) == 1 for v in parameters.values()) and not _is_random(recording, parameters)
    if not (count or constant):
        return
    if constant:
        node.parameters = [parameters]
    else:
        node.parameters = [*node.parameters, parameters]
    for child in node.children.values():
        total, n = child.share or (-np.inf, 0)
        if n and constant:
            continue
        assert child.answer is not None
        # An answer met for the first time is asked of the members that came before, too.
        for known in node.parameters if not n else node.parameters[-1:]:
            env = {**known, value: child.answer[None]}
            evaluate(recording.trace.graph.schedule([result], env), env)
            terms = env[result]
            total, n = float(np.logaddexp(total, logsumexp(terms))), n + len(terms)
        child.share = total, n


def _is_random(recording: Recording, nodes: Iterable[Node]) -> bool:
    """Whether a site that is not fixed is behind some of the nodes."""
    fixed = {site.outputs[0]: site for site in recording.sites if site.fixed is not None}
    return any(isinstance(step, Site) for step in recording.trace.graph.schedule(nodes, fixed, recording.drawn_from))
