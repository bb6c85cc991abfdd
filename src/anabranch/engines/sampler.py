"""What all engines have in common: a run of one of them, from the first execution to the posterior."""

from __future__ import annotations

import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

import numpy as np

from anabranch import errors
from anabranch.combine import Posterior, Run
from anabranch.combine.history import History
from anabranch.divide import Division
from anabranch.divide.batch import stable_hash
from anabranch.divide.division import Restarted
from anabranch.divide.recording import Recording
from anabranch.engines.collection import Collection
from anabranch.engines.runner import Runner, check_drawn
from anabranch.engines.traces import Traces
from anabranch.limits import LimitReached, Limits, enforced
from anabranch.pace import Pace
from anabranch.report.progress import Progress, Status

__all__ = ["Sampler", "Session", "recordings_of"]

_RESTARTS = 5
_EXPLORING, _CHECKING = 0.3, 0.5
"""Shares of the time after which exploration, and what is to be known of the program beside it, are over."""
_TRIALS = 10
"""Trials of how long executions take have one in so many of those that are left, and of the seconds."""
_TRIED = (1, 1, 4, 16, 64, 256, 1024)
_AT_FIRST, _TELLING = 0.3, 16
"""Trials of fewer than these executions have that share of the seconds: the first prepare much that is kept."""
_INSTANT = 1e-9
_INTERRUPTED = "It was interrupted; what had been computed by then is kept."
_MORE = 1.02
"""By how much the evaluations grow between two looks at the evidence that are remembered."""


class Session:
    """One run of an engine: what executes the program, what was drawn, and what is left of the limits."""

    def __init__(
        self, engine: Sampler, division: Division, limits: Limits, seed: int, progress: Progress, spent: int = 0
    ) -> None:
        self.engine, self.division, self.limits, self.seed, self.progress = engine, division, limits, seed, progress
        self.runner = Runner(division, seed, engine.carries_values)
        self.runner.evaluations = spent
        self.collection = Collection(type(engine).__name__, seed, engine.weighted, engine.evidence_apart)
        self.rng = np.random.default_rng([seed, 13])
        self.notes: list[str] = []
        self.at_end: list[Callable[[], None]] = []  # also if it is interrupted
        self.history = History()
        self._met = 0
        self.stopped = ""
        self.begun = 0.0 if limits.seconds is None else limits.elapsed
        self.rate = np.inf  # executions per second, where the time is limited and they were tried

    @property
    def guide_seed(self) -> int:
        """Where the draws of a guide come from: not one of the seeds from which other runs draw."""
        return stable_hash("guide", self.seed) >> 2

    @property
    def left(self) -> int:
        """Executions that are left of the budget, at least one."""
        return max(self.limits.budget - self.runner.evaluations, 1)

    @property
    def progressed(self) -> float:
        """Which share of the budget or of the time, whichever is larger, is over.

        Time that was spent before the session began does not count: else there might be no warm-up.
        """
        limits, of_time = self.limits, 0.0
        if limits.seconds is not None:
            of_time = (limits.elapsed - self.begun) / max(limits.seconds - self.begun, _INSTANT)
        return max(self.runner.evaluations / limits.budget, of_time)

    @property
    def expected(self) -> float:
        """Executions that the session will have made in the end, as far as that is known."""
        limits = self.limits
        if limits.seconds is None:
            return limits.budget
        return min(limits.budget, self.runner.evaluations + self.rate * max(limits.seconds - limits.elapsed, 0.0))

    @contextmanager
    def until(self, share: float) -> Iterator[None]:
        """Within this, what is at work is ended once so much of the time of the session is over."""
        seconds = self.limits.seconds
        limits = self.limits
        if seconds is not None:
            limits = limits.within((self.begun + share * max(seconds - self.begun, 0.0)) / seconds)
        with contextlib.suppress(LimitReached), enforced(limits):
            yield

    def allowed(self, trial: Callable[[int], object] | None = None) -> int:
        """Executions for which there is budget and, as more and more of them in a trial show, time.

        Without a limit on the time nothing is tried.
        """
        limits, execute = self.limits, trial or self.runner.execute
        if limits.seconds is None:
            return self.left
        began = now = limits.elapsed
        most = max(self.left // _TRIALS, 1)
        for size, following in itertools.pairwise((*_TRIED, _TRIED[-1])):
            n = min(size, most)
            execute(n)
            before, now = now, limits.elapsed
            taken = max(now - before, _INSTANT)
            self.rate = n / taken
            share = _AT_FIRST if following < _TELLING else 1 / _TRIALS
            if size >= most or now - began + taken * following / size > share * (limits.seconds - began):
                break
        return min(self.left, max(int(self.rate * (limits.seconds - now)), 1))

    def goes_on(self, needs: int = 1) -> bool:
        """Whether there is anything left to do, which needs so many executions at least; tells the progress display
        how far it has come."""
        log_z, sd = self.collection.evidence() if self.engine.has_evidence else (None, None)
        evaluations = self.runner.evaluations
        self._note(log_z)
        self.progress.update(Status(len(self.runner.paths), len(self.collection.masses), log_z, sd, evaluations,
                                    self.limits.budget))  # fmt: skip
        interrupted = _INTERRUPTED if self.limits.cancelled.is_set() else ""
        self.stopped = interrupted or self.limits.exceeded(evaluations + needs - 1) or self._is_settled(sd)
        return not self.stopped

    def collect(self, batch: int, draw: Callable[[int], tuple[Traces, np.ndarray]]) -> None:
        """Collect independent executions with their log weights, so many at a time, for as long as it goes on."""
        drawn, pace = 0, Pace()
        while self.goes_on():
            n = pace.size(min(batch, self.left))
            with pace.measured(n):
                traces, log_weights = draw(n)
            self.collection.add(traces, log_weights, drawn + np.arange(n))
            drawn += n

    def _note(self, log_evidence: float | None) -> None:
        """Remember the paths that were met for the first time, and, now and then, the evidence."""
        evaluations = self.runner.evaluations
        for path in self.runner.paths[self._met :]:
            self.history.add(evaluations, log_evidence, path.description)
        self._met = len(self.runner.paths)
        last = max(self.history.evaluations[-1:], default=0)
        if log_evidence is not None and evaluations > _MORE * last:
            self.history.add(evaluations, log_evidence)

    def _is_settled(self, log_evidence_sd: float | None) -> str:
        tolerance = self.limits.tolerance
        if tolerance is None or log_evidence_sd is None or not self.engine.independent:
            return ""
        if not (self.collection.counts.sum() >= self.engine.fewest and log_evidence_sd < tolerance):
            return ""
        if self.collection.weights()[1].max(initial=0.0) > tolerance:
            return ""
        return f"log Z and the weights of the paths are known to {tolerance:g}."

    def finish(self) -> None:
        """Let whatever waits for the end say what it has to say."""
        while self.at_end:
            self.at_end.pop(0)()

    def check_drawn(self) -> None:
        """Refuse to make a posterior of nothing."""
        if not self.collection.executions:
            limits = self.limits
            by_time = limits.seconds is not None and self.runner.evaluations < limits.budget
            given = f"{limits.seconds:g} seconds" if by_time else f"a budget of {limits.budget:,} executions"
            if limits.cancelled.is_set():
                raise KeyboardInterrupt
            raise nothing_drawn(self.engine, given)

    def posterior(self) -> Posterior:
        """What is known by now."""
        self.finish()
        self.check_drawn()
        solutions, evidence = self.collection.solutions(self.engine.has_evidence and self.collection.has_evidence)
        return Posterior(self.division.program, solutions, self.run(), evidence)

    def run(self, prior_mass_found: float | None = None) -> Run:
        """How it went."""
        collection, notes = self.collection, list(self.notes)
        if collection.beyond:
            notes.append(
                f"{collection.beyond:,} of {collection.executions:,} executions had more sites than max_sites, and "
                "count as impossible. Raise max_sites."
            )
        if self.runner.invalid:
            notes.append(
                f"The density of {self.runner.invalid:,} executions is NaN or infinite, as it may be at the very edge "
                "of a support. Chains cannot go there: mass there is missing. Write that site on another scale."
            )
        evaluations = self.runner.evaluations
        return Run(self.stopped, evaluations, evaluations, self.limits.elapsed, self.seed, prior_mass_found,
                   notes=tuple(notes), settings=repr(self.engine), history=self.history)  # fmt: skip


class Sampler(ABC):
    """An engine that draws whole executions: `check` says whether it can run a program, `sample` does it."""

    has_evidence: ClassVar[bool] = True
    """Whether the weights of the executions are those of the evidence."""
    independent: ClassVar[bool] = False
    """Whether the run may end once the error, which is that of independent draws, is small enough."""
    fewest: ClassVar[int] = 1_000
    """Independent draws, or runs, before the error is believed."""
    weighted: ClassVar[bool] = False
    """Whether the executions are independent draws with weights."""
    carries_values: ClassVar[bool] = False
    """Whether the values of an execution are kept when it goes over to another path."""
    evidence_apart: ClassVar[bool] = False
    """Whether the evidence does not come from the weights of the executions."""
    saving: ClassVar[str] = ""
    """What makes the engine ask for less, as the end of a sentence on what to do."""
    sequential: ClassVar[bool] = False
    """Whether executions must be able to stop at an observation."""

    @property
    def executions(self) -> int:
        """Executions that show what the program is like, before the engine begins."""
        return 100

    def check(self, division: Division) -> None:
        """Raise `EngineCannotRun` if the engine does not suit the program."""
        return None

    def check_program(self, division: Division) -> None:
        """Raise `EngineCannotRun` if no engine, or not this one, can run the program."""
        for recording in recordings_of(division):
            for site in recording.sites:
                check_drawn(site)
        self.check(division)

    @abstractmethod
    def sample(self, session: Session) -> None:
        """Draw executions into the session's collection, for as long as it goes on."""

    def posterior(self, session: Session) -> Posterior:
        """What the session's draws say."""
        return session.posterior()

    def run(self, division: Division, limits: Limits, seed: int, workers: int, progress: Progress) -> Posterior:
        """Infer, until a limit is reached."""
        division = self._explored(division, limits, seed)
        spent = 0
        for _ in range(_RESTARTS):
            session = Session(self, division, limits, seed, progress, spent)
            try:
                # Far from the mass, densities overflow: that is no news.
                with np.errstate(all="ignore"):
                    self._draw(session)
                    return self.posterior(session)
            except Restarted:
                spent = session.runner.evaluations
            except KeyboardInterrupt:
                if session.collection.is_empty:
                    raise
                session.stopped = _INTERRUPTED
                with np.errstate(all="ignore"):
                    return session.posterior()
        raise AssertionError("a division changes its form at most twice")

    def _explored(self, division: Division, limits: Limits, seed: int) -> Division:
        """The program, in the form that the engine needs, once it is known what it is like and that it suits.

        Each takes a part of the time at most: what is found later is checked when it is.
        """
        with contextlib.suppress(LimitReached), enforced(limits.within(_EXPLORING)):
            division.explore(self.executions, seed)
        division.check_some_end()
        if limits.cancelled.is_set():
            raise KeyboardInterrupt
        if not len(division):
            raise nothing_drawn(self, f"{limits.seconds:g} seconds")
        with enforced(limits.within(_CHECKING)):
            with contextlib.suppress(LimitReached):
                self.check_program(division)
            return division.sequential() if self.sequential else division

    def _draw(self, session: Session) -> None:
        """Let the engine draw, and end it where it is once a limit is reached."""
        limits, ended = session.limits, ""
        try:
            with contextlib.suppress(LimitReached), enforced(limits):
                self.sample(session)
        except errors.CompilationTooLong as error:
            ended = f"No time was left: {error}."
        interrupted = _INTERRUPTED if limits.cancelled.is_set() else ""
        session.stopped = session.stopped or interrupted or limits.exceeded(session.runner.evaluations) or ended


def nothing_drawn(engine: Sampler, given: str) -> errors.LimitTooSmall:
    """What to say where a limit ended a run before anything was drawn."""
    return errors.LimitTooSmall(
        f"{type(engine).__name__} has nothing to say after {given}: no draw was complete by then",
        remedy=f"Give it more, make the program cheaper to execute (with jax.numpy, if it leaves JAX){engine.saving}",
    )


def recordings_of(division: Division) -> Iterator[Recording]:
    """The decision sequences found so far."""
    for path in division:
        yield from path.recordings
