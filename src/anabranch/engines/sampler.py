"""What all engines have in common: a run of one of them, from the first execution to the posterior."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar

import numpy as np

from anabranch.combine import Posterior, Run
from anabranch.combine.history import History
from anabranch.divide import Division
from anabranch.divide.division import Restarted
from anabranch.divide.interpret import Execution
from anabranch.divide.recording import Recording
from anabranch.divide.simulate import stable_hash
from anabranch.engines.collection import Collection
from anabranch.engines.runner import Runner, check_drawn
from anabranch.limits import Limits
from anabranch.report.progress import Progress, Status

__all__ = ["Sampler", "Session", "recordings_of"]

_RESTARTS = 5
_MORE = 1.02
"""By how much the evaluations grow between two looks at the evidence that are remembered."""


class Session:
    """One run of an engine: what executes the program, what was drawn, and what is left of the limits."""

    def __init__(self, engine: Sampler, division: Division, limits: Limits, seed: int, progress: Progress) -> None:
        self.engine, self.division, self.limits, self.seed, self.progress = engine, division, limits, seed, progress
        self.runner = Runner(division, seed, engine.carries_values)
        self.collection = Collection(type(engine).__name__, seed, weighted=engine.weighted)
        self.rng = np.random.default_rng([seed, 13])
        self.notes: list[str] = []
        self.at_end: list[Callable[[], None]] = []  # also if it is interrupted
        self.history = History()
        self._met = 0
        self.stopped = ""

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
        """Which share of the budget or of the time, whichever is larger, is over."""
        limits = self.limits
        of_time = 0.0 if limits.seconds is None else limits.elapsed / limits.seconds
        return max(self.runner.evaluations / limits.budget, of_time)

    def goes_on(self) -> bool:
        """Whether there is anything left to do; tells the progress display how far it has come."""
        log_z, sd = self.collection.evidence() if self.engine.has_evidence else (None, None)
        evaluations = self.runner.evaluations
        self._note(log_z)
        self.progress.update(Status(len(self.runner.paths), len(self.collection.masses), log_z, sd, evaluations,
                                    self.limits.budget))  # fmt: skip
        self.stopped = self.limits.exceeded(evaluations) or self._is_settled(sd)
        return not self.stopped

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

    def posterior(self) -> Posterior:
        """What is known by now."""
        self.finish()
        solutions, evidence = self.collection.solutions(self.engine.has_evidence)
        return Posterior(self.division.program, solutions, self.run(), evidence)

    def run(self, explored: float | None = None) -> Run:
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
        return Run(self.stopped, evaluations, evaluations, self.limits.elapsed, self.seed, explored,
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
        division.explore(self.executions, seed)
        division.check_some_end()
        self.check_program(division)
        for _ in range(_RESTARTS):
            session = Session(self, division.sequential() if self.sequential else division, limits, seed, progress)
            try:
                # Far from the mass, densities overflow: that is no news.
                with np.errstate(all="ignore"):
                    self.sample(session)
                    return self.posterior(session)
            except Restarted:
                continue
            except KeyboardInterrupt:
                if session.collection.is_empty:
                    raise
                session.stopped = "It was interrupted; what had been computed by then is kept."
                return session.posterior()
        raise AssertionError("a division changes its form at most twice")


def recordings_of(division: Division) -> Iterator[Recording]:
    """The decision sequences found so far."""
    for path in division:
        for end in path.ends:
            yield end.recording if isinstance(end, Execution) else end
