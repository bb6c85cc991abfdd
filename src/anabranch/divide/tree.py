"""The tree of decisions, grown by the executions that are sent through it.

An inner node is a question of the program; its edges are the answers that have been met. Where every answer is known,
a batch is split by evaluating the slice of the graph that the question needs, without running any Python. Where a batch
comes to an unexplored node, the program is run once: the largest part of the batch goes along, and the others follow.
"""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from anabranch import errors
from anabranch.divide.batch import Batch, Constraints, stable_hash
from anabranch.divide.decision_node import DecisionNode
from anabranch.divide.executions import Executions
from anabranch.divide.exploring import ExploringOracle, add_shares, answers_of
from anabranch.divide.graph import Node
from anabranch.divide.interpreted_run import InterpretedRun, RunOrder, RunRecord, executed
from anabranch.divide.recorder import LeavesJax, Recorder, TooManySites
from anabranch.divide.recording import Program, Recording
from anabranch.divide.remedies import Departure, interpreter_message
from anabranch.divide.sharing import is_helped, shared
from anabranch.limits import LimitReached, checkpoint, time_limit

__all__ = ["Tree"]

logger = logging.getLogger("anabranch")

_RUNS_TO_MEASURE, _SLOW = 5, 0.5
"""Executions, or seconds of one, after which it is said how long the interpreter takes."""
_RUNS_OF_WIDE, _MAX_OF_WIDE = 300, 315
"""Runs of the Python after which executions from the prior are ended, if they were fewer than this."""
_SHARED_SECONDS, _SHARED_SECONDS_TIMED = 10.0, 0.5
"""Seconds of executions by the interpreter that are shared with others at once, and the same if the time is limited."""
_IN_VAIN = 200_000
"""Sites of runs that all had too many, after which no more are tried: half a minute in the interpreter."""


class Tree:
    """The known part of a program. `on_leaf` is told of each new leaf, `on_departure` what leaves JAX, and where."""

    def __init__(
        self,
        program: Program,
        on_leaf: Callable[[DecisionNode], None],
        on_departure: Callable[[str, str], None] = lambda what, where: None,
    ) -> None:
        self.program, self.on_leaf, self.root = program, on_leaf, DecisionNode(interpreted=program.interpreted)
        self.on_departure = on_departure
        self.runs = 0  # of the program's Python
        self.departure: Departure | None = None
        """Where the program left JAX, if it did."""
        self.completed = self.overruns = 0  # runs that ended, and that had too many sites
        self._beyond: errors.Place | None = None  # the last site that was one too many
        self._said_invalid = False

    def send(self, n: int, seed: int, constraints: Constraints | None = None, count: bool = True) -> list[Executions]:
        """Send `n` executions through the program. `count`: they are prior draws, which estimate probabilities; they
        are ended where nearly each of them runs the Python, and others would, too."""
        batch = Batch(seed, constraints or Constraints(), np.arange(n))
        max_runs = self.runs + _RUNS_OF_WIDE if count else np.inf
        return self.advance([Executions(self.root, batch)], count=count, max_runs=max_runs)

    def advance(
        self, groups: Iterable[Executions], count: bool = False, until: float = np.inf, max_runs: float = np.inf
    ) -> list[Executions]:
        """Send executions on from where they are: to the end, or to the first question after `until` observations; no
        further than so many runs if nearly each execution takes one."""
        arrived: list[Executions] = []
        waiting = list(groups)
        try:
            while waiting:
                checkpoint()
                if self.runs == max_runs and self.departure is None and _number(arrived) < _MAX_OF_WIDE:
                    break
                group = waiting.pop()
                group.node.visits += len(group.batch) if count else 0
                if group.node.unexplored or (group.node.is_cold and until == max_runs == np.inf):
                    group = self._run(group, waiting, count, until)
                if group.node.interpreted:
                    arrived.extend(self._interpret(group.node, group.batch, count))
                elif group.node.question is not None and group.node.observed < until:
                    self._split(group.node, group.batch, waiting, count)
                else:
                    arrived.append(group)
        finally:
            # They were on their way: what they would have found is a part of the prior that was not.
            for group in waiting:
                group.node.visits += len(group.batch) if count else 0
        return arrived

    def _run(self, group: Executions, waiting: list[Executions], count: bool, until: float) -> Executions:
        """Run the program to an unexplored node and on, with the largest part of the batch at each question.

        Executions that are to stop at an observation stay there, and a copy of them goes on to explore what follows.
        """
        oracle = ExploringOracle(group.node, group.batch, waiting, count, until)
        recorder = Recorder(self.program, oracle)
        try:
            recording = oracle.lead(recorder)  # which moves the oracle on
            if oracle.arrived(recording):
                self._ended(oracle.node, recording)
        except LeavesJax as left:
            if not oracle.node.interpreted:
                oracle.node.interpreted = True
                self.on_departure(left.what, left.where)
                self.departure = self.departure or left.departure  # told once it is known how long an execution takes
        except TooManySites as beyond:
            if not oracle.node.truncated:
                oracle.node.truncated = True
                self._overran(*beyond.args)
        finally:
            self.runs += oracle.is_new
        for node, site, members in oracle.site_questions:
            add_shares(node, site, members, count)
        return oracle.stopped or Executions(oracle.node, oracle.batch)

    def _ended(self, node: DecisionNode, recording: Recording) -> None:
        """Make the node a leaf; not where a limit comes before it is known to be a path."""
        node.kept = recording.kept
        try:
            self.on_leaf(node)
        except LimitReached:
            node.kept = None
            raise
        self.completed += 1

    def _overran(self, place: errors.Place) -> None:
        """Count a run with too many sites; there must be others, if there were many."""
        self.overruns += 1
        self._beyond = place
        if self.overruns * self.program.max_sites >= _IN_VAIN:
            self.check_some_end()

    def check_some_end(self) -> None:
        """Raise `EndlessProgram` if every run so far had too many sites."""
        if self.overruns and not self.completed:
            raise errors.EndlessProgram(
                f"every execution of {self.program.name} came here after {self.program.max_sites:,} sites, as many as "
                "max_sites allows",
                at=self._beyond,
                remedy="Make the loop or the recursion that draws it end with some probability, or raise max_sites",
            )

    def _say_how_slow(self, at_last: bool) -> None:
        """Say once why the program is interpreted and how long an execution takes, after a few of them at the most."""
        pace = self.program.pace  # which its predictions share
        runs, seconds = pace.runs, pace.seconds_per_run
        if pace.is_told or self.departure is None:
            return
        if at_last or runs >= _RUNS_TO_MEASURE or (seconds is not None and seconds >= _SLOW):
            pace.is_told = True
            logger.warning("%s", interpreter_message(self.program.name, self.departure, seconds))

    def _split(self, node: DecisionNode, batch: Batch, waiting: list[Executions], count: bool) -> None:
        recording = node.recording
        assert recording is not None
        assert node.question is not None
        site = None if node.question[0] is None else recording.sites[node.question[0]]
        asked = site.outputs[0] if site is not None else Node(node.question[1])  # type: ignore[arg-type]
        unseen = asked not in batch.env
        for answer, index in answers_of(batch.values(recording, asked), len(batch)):
            child = node.child(answer.tobytes(), answer)
            waiting.append(Executions(child, batch.take(index, child.key, {asked: answer})))
        if site is not None and unseen:
            add_shares(node, site, batch, count)

    def _interpret(self, node: DecisionNode, batch: Batch, count: bool) -> Iterator[Executions]:
        known, row = _drawn_so_far(node, batch), 0
        while row < len(batch):
            self._say_how_slow(at_last=False)
            rows = slice(row, min(row + self._rows_at_once(batch), len(batch)))
            try:
                for run in self._executed(node, batch, known, rows):
                    # Each execution is drawn by itself here, so each needs a stream of its own.
                    member = batch.take(np.array([row]), stable_hash(node.key, int(batch.members[row])))
                    yield self._interpreted(node, member, run, count)
                    row += 1
            except LimitReached:
                node.undone += len(batch) - row if count else 0
                raise
        self._say_how_slow(at_last=True)

    def _rows_at_once(self, batch: Batch) -> int:
        """Executions between two looks at the limits: more than one where others do a share of them."""
        each = self.program.pace.seconds_for(1)
        if not is_helped() or batch.constraints.proposals or not each:  # functions of an engine do not travel
            return 1
        return max(int((_SHARED_SECONDS_TIMED if time_limit() else _SHARED_SECONDS) / each), 1)

    def _executed(
        self, node: DecisionNode, batch: Batch, known: dict[str, np.ndarray], rows: slice
    ) -> list[InterpretedRun | TooManySites]:
        """Some executions by the interpreter, from a node on; or how each came beyond the bound on sites."""

        def here(some: slice) -> list[Any]:
            return [self._executed_here(node, batch, known, rows.start + k) for k in range(some.start, some.stop)]

        def order(some: slice) -> RunOrder:
            return RunOrder.of(node.key, batch, known, slice(rows.start + some.start, rows.start + some.stop))

        n = rows.stop - rows.start
        parts = shared(self.program, n, 1, self.program.pace.seconds_for(n) if n > 1 else 0.0, here, order)
        found = enumerate(itertools.chain.from_iterable(parts), rows.start)
        return [
            InterpretedRun(self.program, run)
            if isinstance(run, RunRecord)
            else run or self._executed_here(node, batch, known, row)
            for row, run in found
        ]

    def _executed_here(
        self, node: DecisionNode, batch: Batch, known: dict[str, np.ndarray], row: int
    ) -> InterpretedRun | TooManySites:
        checkpoint()
        member = batch.take(np.array([row]), stable_hash(node.key, int(batch.members[row])))
        given = {name: value[row if len(value) > 1 else 0] for name, value in known.items()}
        try:
            return InterpretedRun(self.program, executed(self.program, member, given))
        except TooManySites as beyond:
            return beyond

    def _interpreted(
        self, node: DecisionNode, member: Batch, run: InterpretedRun | TooManySites, count: bool
    ) -> Executions:
        """An execution by the interpreter, at the end to which it came."""
        self.runs += 1
        if isinstance(run, TooManySites):
            self._overran(*run.args)
            child = node.child("truncated", None)
            child.truncated = True
            child.visits += 1 if count else 0
            return Executions(child, member)
        if run.invalid and not self._said_invalid:
            self._said_invalid = True
            logger.warning("%s Such executions count as impossible.", run.invalid)
        child = node.child(run.signature, None)
        if child.kept is None:
            self._ended(child, run.recording)
        child.visits += 1 if count else 0
        return Executions(child, member, run)


def _number(arrived: Iterable[Executions]) -> int:
    """How many executions have arrived."""
    return sum(len(executions.members) for executions in arrived)


def _drawn_so_far(node: DecisionNode, batch: Batch) -> dict[str, np.ndarray]:
    """The sites that were needed to come here, by name."""
    recording = node.parent.recording if node.parent is not None else None
    if recording is None:
        return {}
    names = {site.outputs[0]: site.name for site in recording.sites}
    return {names[drawn]: value for drawn, value in batch.env.items() if drawn in names}
