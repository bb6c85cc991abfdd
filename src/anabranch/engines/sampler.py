"""What all engines have in common: a run, from the first execution to the posterior."""

from __future__ import annotations

import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, TypeVar

import numpy as np

from anabranch import errors
from anabranch.combine import Posterior, PosteriorWithEvidence, Run, posterior_of
from anabranch.combine.history import History
from anabranch.divide import Division, Recording, Restarted, stable_hash
from anabranch.engines.collection import Collection
from anabranch.engines.runner import Runner, check_site
from anabranch.engines.traces import Traces
from anabranch.limits import INTERRUPTED, LimitReached, Limits, Pace, enforced
from anabranch.progress import Progress, Status

__all__ = ["EvidenceSampler", "Sampler", "Session", "WeightedSampler", "recordings_of"]

_INSTANT = 1e-9
T = TypeVar("T")


class Session:
    """One run of an engine: the runner of the program, the draws collected, and the limits."""

    trial_sizes: ClassVar[tuple[int, ...]] = (1, 1, 4, 16, 64, 256, 1024)
    """Executions of the trials that show how fast the program is, if the time is limited."""
    trial_share: ClassVar[float] = 0.1
    """The share of the seconds and of the executions for trials: longer ones know the speed better."""
    first_trial_share: ClassVar[float] = 0.3
    """The share of the seconds for trials of fewer than 16 executions, in which much is compiled that stays."""
    history_growth: ClassVar[float] = 1.02
    """The factor by which evaluations grow between two entries of the evidence in the history."""

    def __init__(
        self, engine: Sampler, division: Division, limits: Limits, seed: int, progress: Progress, spent: int = 0
    ) -> None:
        self.engine, self.division, self.limits, self.seed, self.progress = engine, division, limits, seed, progress
        self.runner = Runner(division, seed, engine.carries_values)
        self.runner.evaluations = spent
        self.collection = Collection(type(engine).__name__, seed, engine.weighted, engine.evidence_apart)
        self.rng = np.random.default_rng([seed, 13])
        self.notes: list[str] = []
        self.at_end: list[Callable[[], None]] = []  # also after an interrupt
        self.history = History()
        self._met = 0
        self.stopped = ""
        self.begun = 0.0 if limits.seconds is None else limits.elapsed
        self.rate = np.inf  # executions per second, by trials, if the time is limited

    @property
    def guide_seed(self) -> int:
        """The seed of a guide's draws, which differs from that of every run."""
        return stable_hash("guide", self.seed) >> 2

    @property
    def left(self) -> int:
        """Executions left of the budget, at least one."""
        return max(self.limits.budget - self.runner.evaluations, 1)

    @property
    def progressed(self) -> float:
        """The share of the budget or of the time of the session, whichever is larger, that is over."""
        limits, of_time = self.limits, 0.0
        if limits.seconds is not None:
            of_time = (limits.elapsed - self.begun) / max(limits.seconds - self.begun, _INSTANT)
        return max(self.runner.evaluations / limits.budget, of_time)

    @property
    def expected(self) -> float:
        """Executions that the session is expected to make in total."""
        limits = self.limits
        if limits.seconds is None:
            return limits.budget
        return min(limits.budget, self.runner.evaluations + self.rate * max(limits.seconds - limits.elapsed, 0.0))

    @contextmanager
    def until(self, share: float) -> Iterator[None]:
        """A context that ends once that share of the time of the session is over."""
        limits = self.limits
        if limits.seconds is not None:
            limits = limits.within((self.begun + share * max(limits.seconds - self.begun, 0.0)) / limits.seconds)
        with contextlib.suppress(LimitReached), enforced(limits):
            yield

    def allowed(self, trial: Callable[[int], object] | None = None) -> int:
        """Executions for which there is budget and, by trials of growing size, time."""
        limits, execute = self.limits, trial or self.runner.execute
        if limits.seconds is None:
            return self.left
        began = now = limits.elapsed
        max_size = max(int(self.trial_share * self.left), 1)
        for size, following in itertools.pairwise((*self.trial_sizes, self.trial_sizes[-1])):
            n = min(size, max_size)
            execute(n)
            before, now = now, limits.elapsed
            taken = max(now - before, _INSTANT)
            self.rate = n / taken
            share = self.first_trial_share if following < 16 else self.trial_share
            if size >= max_size or now - began + taken * following / size > share * (limits.seconds - began):
                break
        return min(self.left, max(int(self.rate * (limits.seconds - now)), 1))

    def goes_on(self, needs: int = 1) -> bool:
        """Whether the limits allow so many executions more; updates the progress display."""
        log_z, sd = self.collection.evidence() if self.engine.has_evidence else (None, None)
        evaluations = self.runner.evaluations
        self._note(log_z)
        self.progress.update(Status(len(self.runner.paths), len(self.collection.masses), log_z, sd, evaluations,
                                    self.limits.budget))  # fmt: skip
        interrupted = INTERRUPTED if self.limits.cancelled.is_set() else ""
        self.stopped = interrupted or self.limits.exceeded(evaluations + needs - 1) or self._is_settled(sd)
        return not self.stopped

    def collect(self, batch: int, draw: Callable[[int], tuple[Traces, np.ndarray]]) -> None:
        """Collect independent executions with their log weights, `batch` at a time, until the session ends."""
        drawn, pace = 0, Pace()
        while self.goes_on():
            n = pace.size(min(batch, self.left))
            with pace.measured(n):
                traces, log_weights = draw(n)
            self.collection.add(traces, log_weights, drawn + np.arange(n))
            drawn += n

    def _note(self, log_evidence: float | None) -> None:
        """Record in the history the first visit of each path and, now and then, the evidence."""
        evaluations = self.runner.evaluations
        for path in self.runner.paths[self._met :]:
            self.history.add(evaluations, log_evidence, path.description)
        self._met = len(self.runner.paths)
        last = max(self.history.evaluations[-1:], default=0)
        if log_evidence is not None and evaluations > self.history_growth * last:
            self.history.add(evaluations, log_evidence)

    def _is_settled(self, log_evidence_sd: float | None) -> str:
        tolerance, collection = self.limits.tolerance, self.collection
        if tolerance is None or log_evidence_sd is None or not self.engine.independent:
            return ""
        settled = collection.counts.sum() >= self.engine.min_draws and log_evidence_sd < tolerance
        return self.limits.met if settled and not collection.weights()[1].max(initial=0.0) > tolerance else ""

    def finish(self) -> None:
        """Call what the engine registered for the end of the run."""
        while self.at_end:
            self.at_end.pop(0)()

    def check_not_empty(self) -> None:
        """Raise `LimitTooSmall` if nothing was drawn."""
        if not self.collection.executions:
            limits = self.limits
            by_time = limits.seconds is not None and self.runner.evaluations < limits.budget
            given = f"{limits.seconds:g} seconds" if by_time else f"a budget of {limits.budget:,} executions"
            if limits.cancelled.is_set():
                raise KeyboardInterrupt
            raise nothing_drawn(self.engine, given)

    def posterior(self) -> Posterior:
        """The posterior by the draws collected so far."""
        self.finish()
        self.check_not_empty()
        solutions, evidence = self.collection.solutions(self.engine.has_evidence and self.collection.has_evidence)
        return posterior_of(self.division.program, solutions, self.run(), evidence)

    def run(self, prior_mass_found: float | None = None) -> Run:
        collection, notes = self.collection, list(self.notes)
        if collection.beyond:
            notes.append(
                f"{collection.beyond:,} of {collection.executions:,} executions had more sites than max_sites, and "
                "count as impossible. Raise max_sites."
            )
        if self.runner.invalid:
            notes.append(
                f"The density of {self.runner.invalid:,} executions is NaN or infinite, as at the very edge of a "
                "support. They count as impossible, and their mass is missing. Write that site on another scale."
            )
        evaluations = self.runner.evaluations
        return Run(self.stopped, evaluations, evaluations, self.limits.elapsed, self.seed, prior_mass_found,
                   notes=tuple(notes), settings=repr(self.engine), limits=self.limits.as_arguments,
                   history=self.history)  # fmt: skip


class Sampler(ABC):
    """An engine that draws whole executions: `check` says whether it can run a program, `sample` runs it."""

    has_evidence: ClassVar[bool] = True
    """Whether the engine estimates the evidence."""
    independent: ClassVar[bool] = False
    """Whether the draws, or runs, are independent, so that the run may end once the error is below the tolerance."""
    min_draws: ClassVar[int] = 1_000
    """Independent draws, or runs, before that: fewer would trust an error that few draws estimate."""
    weighted: ClassVar[bool] = False
    """Whether the executions are independent draws with weights."""
    carries_values: ClassVar[bool] = False
    """Whether an execution keeps values of its sites when it moves to another path."""
    evidence_apart: ClassVar[bool] = False
    """Whether the evidence does not come from the weights of the executions."""
    saving: ClassVar[str] = ""
    """How the engine can do with a smaller limit, as the end of a sentence."""
    sequential: ClassVar[bool] = False
    """Whether executions must be able to stop at an observation."""
    executions: ClassVar[int] = 100
    """Executions that discover paths of the program before the engine begins; they are not in the budget."""
    exploration_share: ClassVar[float] = 0.3
    """The share of the time after which these end."""
    check_share: ClassVar[float] = 0.5
    """The share of the time after which the check of the program ends; paths found later are checked then."""

    def check(self, division: Division) -> None:
        """Raise `EngineCannotRun` if the engine does not suit the program."""
        return None

    def check_program(self, division: Division) -> None:
        """Raise `EngineCannotRun` if this engine cannot run the program."""
        recordings = list(recordings_of(division))
        for site in itertools.chain.from_iterable(recording.sites for recording in recordings):
            check_site(site)
        if self.sequential and not any(recording.observations for recording in recordings):
            name, program = type(self).__name__, division.program.name
            raise errors.EngineCannotRun(
                f"{name} weights executions at their observations, and {program} has none",
                remedy="Add observe or factor statements, or use ImportanceSampling, which for such a program draws "
                "from the prior",
            )
        self.check(division)

    @abstractmethod
    def sample(self, session: Session) -> None:
        """Draw executions into the session's collection until the session ends."""

    def posterior(self, session: Session) -> Posterior:
        return session.posterior()

    def run(self, division: Division, limits: Limits, seed: int, workers: int, progress: Progress) -> Posterior:
        explored = self._explored(division, limits, seed)
        limits = limits.for_program(explored.interpreted_at is not None)
        return self.in_session(explored, limits, seed, progress, self._infer)

    def in_session(
        self, division: Division, limits: Limits, seed: int, progress: Progress, work: Callable[[Session], T]
    ) -> T:
        """Do some work in a session; in a new one if the division takes another form, which it does twice at most."""
        spent = 0
        while True:
            session = Session(self, division, limits, seed, progress, spent)
            try:
                with np.errstate(all="ignore"):  # densities overflow far from the mass
                    return work(session)
            except Restarted:
                spent = session.runner.evaluations

    def _infer(self, session: Session) -> Posterior:
        try:
            self._draw(session)
            return self.posterior(session)
        except KeyboardInterrupt:
            if session.collection.is_empty:
                raise
            session.stopped = INTERRUPTED
            return session.posterior()

    def _explored(self, division: Division, limits: Limits, seed: int) -> Division:
        """The division after its first executions and the check of the program, in the form that the engine needs."""
        with contextlib.suppress(LimitReached), enforced(limits.within(self.exploration_share)):
            division.explore(self.executions, seed)
        division.check_some_end()
        if limits.cancelled.is_set():
            raise KeyboardInterrupt
        if not len(division):
            raise nothing_drawn(self, f"{limits.seconds:g} seconds")
        with enforced(limits.within(self.check_share)):
            with contextlib.suppress(LimitReached):
                self.check_program(division)
            return division.sequential() if self.sequential else division

    def _draw(self, session: Session) -> None:
        """Let the engine draw until it ends or a limit is reached."""
        limits, ended = session.limits, ""
        try:
            with contextlib.suppress(LimitReached), enforced(limits):
                self.sample(session)
        except errors.CompilationTooLong as error:
            ended = f"No time was left: {error}."
        interrupted = INTERRUPTED if limits.cancelled.is_set() else ""
        session.stopped = session.stopped or interrupted or limits.exceeded(session.runner.evaluations) or ended


class EvidenceSampler(Sampler):
    """An engine that always estimates the evidence."""

    def run(
        self, division: Division, limits: Limits, seed: int, workers: int, progress: Progress
    ) -> PosteriorWithEvidence:
        posterior = super().run(division, limits, seed, workers, progress)
        assert isinstance(posterior, PosteriorWithEvidence)
        return posterior


class WeightedSampler(EvidenceSampler):
    """An engine whose executions are independent draws with weights."""

    independent: ClassVar[bool] = True
    weighted: ClassVar[bool] = True


def nothing_drawn(engine: Sampler, given: str) -> errors.LimitTooSmall:
    """The error of a limit that ended a run before anything was drawn."""
    return errors.LimitTooSmall(
        f"{type(engine).__name__} has no posterior after {given}: no draw was complete by then",
        remedy=f"Give it more, make the program cheaper to execute (with jax.numpy, if it leaves JAX){engine.saving}",
    )


def recordings_of(division: Division) -> Iterator[Recording]:
    """The recordings of the decision sequences found so far."""
    for path in division:
        yield from path.recordings
