"""Algorithm 2 of the paper (appendix B). The numbers in the comments are its lines.

A path is the paper's SLP, A_k. The table of paths is A_total, and S_k, how often a path was chosen, is `record.visits`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from anabranch import errors
from anabranch.allocate import UCB, ActiveSet, PathRecord, PathTable
from anabranch.allocate.path_summary import PathSummary
from anabranch.combine import PosteriorWithEvidence, Run
from anabranch.combine.evidence import join
from anabranch.combine.history import History
from anabranch.conquer import Estimate
from anabranch.conquer.chains import chain_ess, split_r_hat
from anabranch.divide import Division, Executions, Restarted, counts_of
from anabranch.engines.runner import Runner
from anabranch.engines.single_site import propose
from anabranch.engines.traces import Traces
from anabranch.limits import INTERRUPTED, LimitReached, Limits, enforced
from anabranch.paper.local_rmh import LocalRMH, learned_moves, scales_of, started
from anabranch.paper.pi_mais import Centred, PiMais
from anabranch.progress import Progress, Status
from anabranch.search.combining import solution_of

if TYPE_CHECKING:
    from anabranch.paper.settings import PaperDCC

__all__ = ["Algorithm"]

_LOCAL_SHARE = 0.5
"""The share of local moves in RMH; the others are from the prior, as in `engines.RandomWalkMH`."""
_TIME_SHARE = 0.3
"""The part of a time limit that the first executions may take."""
_CHECK_EVERY = 100
"""Iterations between two looks at the tolerance."""


@dataclass
class LocalInference:
    """The inference on one path: where it starts, the states of its chains, and its importance samples.

    `chains` is None before the path is active; `states` (N, d) and `possible` (N,), whether γ_k > 0 there, are those of
    the chains after each step, `samples` (N, M, d) the importance samples if they are the draws.
    """

    start: Traces
    proposal: Centred
    chains: Traces | None = None
    states: list[np.ndarray] = field(default_factory=list)
    possible: list[np.ndarray] = field(default_factory=list)
    weights: PiMais = field(default_factory=PiMais)
    samples: list[np.ndarray] = field(default_factory=list)


class Algorithm:
    """One run of algorithm 2."""

    def __init__(
        self, settings: PaperDCC, division: Division, limits: Limits, seed: int, progress: Progress, spent: int = 0
    ) -> None:
        self.settings, self.division, self.limits, self.seed = settings, division, limits, seed
        self.progress, self.history, self.executions = progress, History(), 0
        self.runner, self.rng = Runner(division, seed), np.random.default_rng([seed, 17])
        self.table = PathTable(written_off=spent)
        self.iterations, self.part, self.seconds = 0, 0, 0.0
        self.is_begun = self.is_activated = False
        self.best: PathRecord | None = None
        self.active = ActiveSet(threshold=settings.C_0, growth=settings.growth, max_active=settings.max_active)
        self.utility = UCB(settings.delta, settings.beta, settings.kappa, settings.T_a)

    # The loop -----------------------------------------------------------------------------------------------------

    def infer(self) -> PosteriorWithEvidence:
        """Iterate until a limit is reached, and combine what there is."""
        stopped = ""
        try:
            with enforced(self.limits):
                stopped = self.iterate()
        except LimitReached:
            stopped = self.limits.exceeded(0)
        except errors.CompilationTooLong as error:
            stopped = f"No time was left: {error}."
        except KeyboardInterrupt:
            self.limits.cancelled.set()
        self.check_some_estimate()
        return self.combine(stopped or INTERRUPTED)  # line 15

    def go_on(self, limits: Limits, progress: Progress) -> None:
        """Let the run go on within other limits, at the line at which it stopped."""
        self.part, self.seconds = self.part + 1, self.seconds + self.limits.elapsed
        self.limits, self.progress = limits, progress

    def begun_again(self) -> Algorithm:
        """The run from its start, with what it has spent so far: the division has another form."""
        again = Algorithm(self.settings, self.division, self.limits, self.seed, self.progress, self.table.evaluations)
        again.part, again.seconds = self.part, self.seconds
        return again

    def iterate(self) -> str:
        """Lines 1 to 14; returns why they ended, as a sentence."""
        if not self.is_begun:
            self.execute_forward()  # line 1
            self.is_begun = True
        while True:  # line 2
            if self.best is None and (reason := self.choose()):  # lines 3 to 9
                return reason
            if self.best is None:
                continue
            if not self.affords(self.cost_of_step):
                return self.limits.exceeded(self.limits.budget)
            best = self.best
            self.infer_locally(best)  # lines 10 and 11: step 2
            self.explore(best)  # lines 12 and 13: step 3
            self.best = None
            self.report()
            if self.iterations % _CHECK_EVERY == 0 and self.is_precise():
                return self.limits.met

    def choose(self) -> str:
        """Lines 3 to 9, which choose the next path; returns why they ended before, as a sentence."""
        if not self.is_activated:
            self.activate()  # line 3
            self.is_activated = True
        for record in self.new_models():  # line 4
            if not self.affords(self.cost_of_start):
                return self.limits.exceeded(self.limits.budget)
            self.initialise(record)  # lines 5 to 7
        self.best, self.is_activated = self.select(), False  # line 9: step 1
        self.iterations += 1
        if self.best is None and self.is_stuck:
            return "No path is left to visit: no execution of those found could be made again."
        return ""

    def execute_forward(self) -> None:
        """Line 1: execute the program T_0 times; the paths that they take are A_total."""
        arrivals = self._executed()
        self.limits = self.limits.for_program(self.division.interpreted_at is not None)
        self.moves = learned_moves(arrivals, _LOCAL_SHARE)
        self.remember(arrivals)

    def activate(self) -> None:
        """Line 3: paths that were executed or proposed at least C_0 times are added to A_active.

        With a bound on A_active, the one with the least evidence leaves; now and then a path that is not active is
        chosen at random (appendix E).
        """
        evidence = {key: record.log_evidence for key, record in self.table.records.items() if record.estimate}
        self.active = self.active.advance(evidence, self.rng)

    def new_models(self) -> list[PathRecord]:
        """Line 4: the paths to choose from that have no chains yet."""
        records = [self.table.records[key] for key in self.active.chosen]
        return [record for record in records if record.state is None or record.state.chains is None]

    def initialise(self, record: PathRecord) -> None:
        """Lines 5 to 7: N chains, T_init greedy steps of each, and M importance samples around each."""
        settings = self.settings
        local = self.begun(record)
        if not len(local.start):  # no execution in the path is known
            record.estimate = Estimate.nothing(record.path.dim, record.target.evaluations, "PI-MAIS")
            local.chains = local.start
            return
        chains = local.start.take(np.resize(np.arange(len(local.start)), settings.N))  # line 5
        chains = self.rmh(record).steps(chains, settings.T_init, greedy=True)  # line 6
        local.chains = chains
        self.note(record)
        self.draw_importance_samples(record)  # line 7
        self.remember_visit(record)

    def select(self) -> PathRecord | None:
        """Line 9: the path of the largest utility, or the inactive one whose turn it is."""
        records = self._with_chains(self.active.active if self.active.visitor is None else [self.active.visitor])
        arms = [PathSummary(record.visits, _never_exact(record.estimate)) for record in records]
        return records[self.utility.choose(arms, 1, self.rng)[0]] if records else None

    def infer_locally(self, record: PathRecord) -> None:
        """Lines 10 and 11: one step of RMH for each of the N chains, and M importance samples around each."""
        local: LocalInference = record.state
        assert local.chains is not None
        local.chains = self.rmh(record).steps(local.chains, 1)  # line 10
        self.note(record)
        local.proposal.learn(local.states)
        self.draw_importance_samples(record)  # line 11
        record.visits += 1
        if not record.first_visit:
            record.first_visit = 1 + max(each.first_visit for each in self.table)
        self.remember_visit(record)

    def explore(self, record: PathRecord) -> None:
        """Lines 12 and 13: one proposal of RMH from each of the N chains, at any site; what it finds is remembered.

        A path that is new gets T_w steps of burn-in from the executions that found it (section 6.2).
        """
        settings = self.settings
        proposal = propose(self.runner, record.state.chains, self.moves, self.rng)  # line 12
        known = set(self.table.records)
        self.remember(self.runner.send(settings.N, proposal.given))  # line 13
        for new in [each for key, each in self.table.records.items() if key not in known]:
            if self.affords(settings.N * (1 + settings.T_w)):
                local = self.begun(new)
                local.start = self.rmh(new).steps(local.start, settings.T_w)

    # Its parts ----------------------------------------------------------------------------------------------------

    def _executed(self) -> list[Executions]:
        """Executions from the prior, in a part of the time; in all of it, until they find a path."""
        executions = self.settings.T_0
        with contextlib.suppress(LimitReached), enforced(self.limits.within(_TIME_SHARE)):
            return self.division.explore(executions, self.seed)
        self.limits.check()
        return [] if len(self.division) else self.division.explore(executions, self.seed)

    def remember(self, arrivals: Sequence[Executions]) -> None:
        """Add new paths to A_total, and count the executions into each path, C_k."""
        if self.division.program is not self.runner.program:
            raise Restarted
        self.division.check_some_end()
        self.table.update(self.division, arrivals)
        self.active = self.active.proposed(dict.fromkeys(self.table.records, 0) | counts_of(arrivals))
        self.executions += sum(len(each.members) for each in arrivals)

    def begun(self, record: PathRecord) -> LocalInference:
        """The inference on a path, from the executions that found it."""
        if record.state is None:
            start = started(self.runner, record, self.settings.N, self.rng)
            record.state = LocalInference(start, Centred.of_prior(scales_of(record.path, self.moves)))
        local: LocalInference = record.state
        return local

    def rmh(self, record: PathRecord) -> LocalRMH:
        return LocalRMH(self.runner, self.moves, record, self.rng)

    def note(self, record: PathRecord) -> None:
        """Keep the states of the chains."""
        local: LocalInference = record.state
        assert local.chains is not None
        states = local.chains.coordinates(record.path, np.arange(len(local.chains)))
        possible = local.chains.log_density > -np.inf
        # An interrupt may come between the two: answers without states are left out.
        local.possible[len(local.states) :] = [possible]
        local.states.append(states)

    def draw_importance_samples(self, record: PathRecord) -> None:
        """Draw M importance samples around each chain, and update Ẑ_k."""
        local: LocalInference = record.state
        centres = np.nan_to_num(local.states[-1], posinf=0.0, neginf=0.0)  # of values at a bound
        points, log_weights = local.proposal.draw(record.target, centres, self.settings.M, self.rng)
        local.weights.add(log_weights)
        if self.settings.draws == "importance":
            local.samples.append(points)
        record.estimate = local.weights.summary(record.target)

    def remember_visit(self, record: PathRecord) -> None:
        """Enter in the history that a path got evaluations."""
        self.history.add(self.table.evaluations, self.table.log_evidence, record.path.description, None,
                         record.target.evaluations, record.log_evidence)  # fmt: skip

    def _with_chains(self, keys: Sequence[object]) -> list[PathRecord]:
        records = [self.table.records[key] for key in keys]
        return [record for record in records if record.state.chains is not None and len(record.state.chains)]

    # Limits -------------------------------------------------------------------------------------------------------

    @property
    def cost_of_step(self) -> int:
        """Evaluations of line 10 and 11."""
        return self.settings.N * (1 + self.settings.M)

    @property
    def cost_of_start(self) -> int:
        """Evaluations of lines 5 to 7."""
        return self.settings.N * (1 + self.settings.T_init + self.settings.M)

    @property
    def is_stuck(self) -> bool:
        """Whether no path has chains, although all were tried."""
        self.limits.check()
        return all(record.state is not None and record.estimate is not None for record in self.table) and not any(
            len(record.state.chains) for record in self.table
        )

    def affords(self, evaluations: int) -> bool:
        """Whether the budget allows so many evaluations more."""
        return self.table.evaluations + evaluations <= self.limits.budget

    def is_precise(self) -> bool:
        """Whether the errors are below the tolerance."""
        tolerance = self.limits.tolerance
        if tolerance is None or self.table.total.log_evidence_sd > tolerance:
            return False
        solutions = [solution_of(record, record.estimate, {}) for record in self.table]
        return bool(join(solutions, self.division.prior_mass_found).weight_sds.max() <= tolerance)

    def report(self) -> None:
        table, total = self.table, self.table.total
        self.progress.update(Status(len(table), len(self.active.active), total.log_evidence, total.log_evidence_sd,
                                    table.evaluations, self.limits.budget))  # fmt: skip

    def check_some_estimate(self) -> None:
        """Raise the error of a limit that ended the run before any path had an estimate."""
        if any(record.estimate is not None for record in self.table):
            return
        if self.limits.cancelled.is_set():
            raise KeyboardInterrupt
        of_time = f"{self.limits.seconds:g} seconds are over" if self.limits.time_is_over else ""
        given = of_time or f"budget of {self.limits.budget:,} evaluations is spent"
        raise errors.LimitTooSmall(
            f"the {given} before a path has its {self.settings.N} chains and their importance samples",
            where=self.division.where,
            remedy=f"Give it more: a path takes {self.cost_of_start} evaluations at first; or lower N, M or T_init",
        )

    # Combine ------------------------------------------------------------------------------------------------------

    def combine(self, stopped: str) -> PosteriorWithEvidence:
        """Line 15: the posterior of all paths, by equation 5."""
        found = self.division.prior_mass_found
        seconds = self.seconds + self.limits.elapsed
        run = Run(stopped, self.table.evaluations, self.executions, seconds, self.seed, found,
                  self.division.prior_mass_truncated, settings=repr(self.settings), limits=self.limits.as_arguments,
                  history=self.history.copy())  # fmt: skip
        # Of copies: by its own estimates the table chooses paths, if the run goes on.
        final = [
            replace(record, estimate=self.estimate(record)) if record.estimate and record.state else record
            for record in self.table
        ]
        solutions = [solution_of(record, record.estimate, {}) for record in final]
        return PosteriorWithEvidence(self.division.program, solutions, run)

    def estimate(self, record: PathRecord) -> Estimate:
        """Ẑ_k by the importance samples, and π̂_k by the states of the chains, or by the importance samples."""
        local: LocalInference = record.state
        target, weights = record.target, local.weights
        if weights.log_sum == -np.inf:
            remark = "The density was zero at every point that was tried."
            return Estimate.nothing(target.dim, target.evaluations, "PI-MAIS", [remark])
        log_weights = np.concatenate(weights.log_weights).ravel()
        by_importance = self.settings.draws == "importance"
        points = np.zeros((len(log_weights), target.dim))
        if by_importance:
            points = np.concatenate(local.samples).reshape(points.shape)
        estimate = Estimate.from_weights(points, log_weights, target.evaluations, "PI-MAIS")
        states = np.array(local.states).swapaxes(0, 1)
        estimate = replace(estimate, log_evidence_sd=weights.error(target), r_hat=split_r_hat(states))
        if by_importance:
            return estimate
        possible = np.array(local.possible[: len(local.states)]).T.ravel()
        draws = states.reshape(len(possible), target.dim)[possible & np.isfinite(states).all(axis=2).ravel()]
        ess = float(np.nan_to_num(chain_ess(states), nan=len(states)).min(initial=len(draws)))
        return replace(estimate, points=draws, log_weights=np.full(len(draws), -np.log(max(len(draws), 1))), ess=ess)


def _never_exact(estimate: Estimate | None) -> Estimate | None:
    """The estimate for the utility: a path without an error is chosen, too, since global proposals begin there."""
    return estimate and replace(estimate, log_evidence_sd=np.nan)
