"""The posterior of a program, combined from its paths (paper, section 4.3), and the questions that users ask of it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from anabranch import errors
from anabranch.combine import diagnose, expectation, observed, probability, saving, stacking
from anabranch.combine.draws import (
    Draw,
    Draws,
    by_observation,
    checked_number,
    drawn_at,
    draws_of,
    gathered,
    pick,
    with_draws,
)
from anabranch.combine.evidence import Evidence, join
from anabranch.combine.maximum import best_point
from anabranch.combine.solution import Run, Solution
from anabranch.conquer.elimination import describe
from anabranch.divide import Program
from anabranch.settings import function, whole

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from anabranch.report.summary import Summary

__all__ = ["Posterior"]

_OF_DRAW = function("of a draw")
_DIAGNOSTICS = ("log_evidence", "log_evidence_sd", "ess", "pareto_k", "r_hat", "tail")


class Posterior:
    """The posterior of a program given its data.

    Attributes:
        program: the program with its arguments.
        solutions: the paths with their estimates, the heaviest first; paths without an estimate come last.
        run: why the run stopped, and what it cost.
        given_evidence: the evidence and the path weights that an engine estimated from whole executions, in the order
            of `solutions`; None if they are sums over the paths.

    Example:
        >>> import anabranch as ab
        >>> from anabranch import programs
        >>> posterior = ab.infer(programs.branching, 2.0, seed=0)
        >>> abs(posterior.log_evidence - -3.1495) < 4 * posterior.log_evidence_sd < 0.05
        True
        >>> mean, sd = posterior.expectation(lambda draw: draw["z1"])  # of the executions that have it: (-5 + 2) / 2
        >>> abs(mean - -1.5) < 4 * sd < 0.3
        True
    """

    def __init__(
        self, program: Program, solutions: Sequence[Solution], run: Run, evidence: Evidence | None = None
    ) -> None:
        """Combine the paths; `evidence`, in the order of these solutions, replaces the sum over the paths."""
        self.program, self.run = program, run
        ranks = [(each.estimate is None, -each.log_evidence, -each.path.log_prior_probability) for each in solutions]
        order = sorted(range(len(solutions)), key=ranks.__getitem__)
        self.solutions = tuple(solutions[k] for k in order)
        self.given_evidence = None if evidence is None else evidence.reordered(order)
        self._conditionals: probability.Conditionals = {}

    @cached_property
    def evidence(self) -> Evidence:
        """The evidence and the path weights, as arrays in the order of `solutions`."""
        if self.given_evidence is not None:
            return self.given_evidence
        return join(self.solutions, self.run.prior_mass_found, self.run.log_possible_not_found)

    @property
    def log_evidence(self) -> float | None:
        """log Z, the log marginal likelihood of the data; None if the engine does not estimate it, as MCMC does not."""
        return self.evidence.log_evidence

    @property
    def log_evidence_sd(self) -> float | None:
        """The standard error of `log_evidence`; None if the engine does not estimate it.

        DCC adds to the Monte Carlo errors of the paths a term for the prior mass that was not found or not visited.
        """
        return self.evidence.log_evidence_sd

    @property
    def paths(self) -> pd.DataFrame:
        """A row for each path, the heaviest first; NaN where a path has no estimate, or the engine no evidence.

        `evaluations` are points at which the density was computed, and `terms` what each of them takes: evaluations of
        the program's graph, more than one where discrete variables are summed out (`describe`).
        """
        import pandas as pd

        rows = zip(self.solutions, self.evidence.weights, self.evidence.weight_sds, strict=True)
        frame = pd.DataFrame([_row(solution, float(weight), float(sd)) for solution, weight, sd in rows])
        if self.log_evidence is None:
            frame[["log_evidence", "log_evidence_sd"]] = np.nan  # the engine estimated path weights alone
        return frame

    @property
    def history(self) -> pd.DataFrame:
        """A row for each visit of a path, in the order of the run.

        Columns: `evaluations` of the whole run so far and `log_evidence` at that time; for a visit also the `path`, the
        `chain` (of engines that run chains, which record some of their steps), the evaluations `spent` on the path so
        far, and `path_log_evidence`. Missing values are NaN or None.
        """
        return self.run.history.frame()

    @property
    def warnings(self) -> list[str]:
        """The failed diagnostics, as sentences that name the path and the remedy."""
        return diagnose.warnings_of(self.solutions, self.evidence, self.run)

    @property
    def notes(self) -> list[str]:
        """What is worth knowing and no failed diagnostic, as sentences: how many variables were not summed out."""
        return diagnose.notes_of(self.solutions, self.evidence)

    def probability(self, name: str) -> dict[Any, float]:
        """The posterior probability of each value of a discrete site or deterministic, the most probable first.

        The value None stands for executions without the name. A deterministic is discrete on a path where its values
        are whole numbers, booleans, or the same at every draw. A vector is a tuple.
        """
        self._check_draws()
        return probability.probability(self.solutions, self.evidence.weights, name, self._conditionals)

    def expectation(self, f: Callable[[Draw], Any], *, max_draws: int = 4000) -> tuple[Any, Any]:
        """The posterior mean of a function of a draw, and its Monte Carlo error.

        f takes a `Draw` and returns a number or an array. The mean is conditional on the names that f reads: draws
        without one of them are left out. A path with more than `max_draws` draws is resampled to that many, and the
        error includes the resampling. The error is infinite if all draws come from one chain or run.
        """
        _OF_DRAW("f", f)
        max_draws = whole(1)("max_draws", max_draws)
        self._check_draws()
        return expectation.expectation(self.solutions, self.evidence, f, max_draws)

    def draws(self, n: int, seed: int = 0) -> Draws:
        """n equally weighted executions, in random order."""
        n, seed = checked_number(n, seed)
        return draws_of(pick(self.solutions, self.evidence.weights, n, seed), n)

    def map(self, path: str | None = None) -> Draw:
        """The best point of one path, as an execution: the values at which the density of the program is largest.

        The path is the heaviest, or the one with this description: densities over different variables cannot be
        compared. It is found by steps from the best draw, so that another mode may be higher if no draw is near it.
        """
        solution = self.solution(path)
        point = best_point(solution.path, solution.points)
        return next(draw for _, draw in drawn_at(solution.path, point[None]))

    def predict(self, f: Callable[..., Any], n: int = 1000, seed: int = 0) -> Any:
        """f(draw), or f(draw, rng) with a NumPy generator, at n draws: an array, or a list if the shapes differ.

        Posterior prediction: `posterior.predict(lambda draw, rng: rng.normal(draw["mu"], 1.0))`.
        """
        _OF_DRAW("f", f)
        n, seed = checked_number(n, seed)
        rng = np.random.default_rng([seed, 1])
        arguments = (rng,) if _takes_two(f) else ()
        return gathered([f(draw, *arguments) for draw in self.draws(n, seed)])

    def replicate(self, n: int = 1000, seed: int = 0) -> dict[str, Any]:
        """Replicated data by the name of the observation: one draw from its distribution at each of n draws.

        Each is an array with the draws as its first axis, masked where an execution lacks the observation, or a list
        if the shapes differ. Data that the program computes with stay as observed.
        """
        n, seed = checked_number(n, seed)
        rng = np.random.default_rng([seed, 2])
        picked = pick(self.solutions, self.evidence.weights, n, seed)
        return by_observation(picked, n, lambda path, points: observed.replicates(path, points, rng))

    def log_likelihood(self, n: int = 1000, seed: int = 0) -> dict[str, Any]:
        """The log density of each part of each observation, and of each factor, at n draws; shapes as `replicate`."""
        n, seed = checked_number(n, seed)
        return by_observation(pick(self.solutions, self.evidence.weights, n, seed), n, observed.log_likelihoods)

    def stacking(self, paths: int = 20) -> pd.DataFrame:
        """Stacking weights of the heaviest paths, by leave-one-out prediction (Yao et al., 2018).

        Paths with other observations than the heaviest one are left out, with a warning in the log. `elpd` is the
        expected log predictive density by PSIS-LOO. `pareto_k`, the largest over the observations, should be below 0.7;
        else a warning is logged. It is NaN if the draws have no tail: too few, or too many alike (a discrete site).
        """
        import pandas as pd

        paths = whole(1)("paths", paths)
        self._check_draws()
        heaviest = zip(self.solutions[:paths], self.evidence.weights[:paths], strict=True)
        rows = stacking.stack([(solution, float(weight)) for solution, weight in heaviest if len(solution.points)])
        return pd.DataFrame(rows).sort_values("stacking_weight", ascending=False, ignore_index=True)

    def to_arviz(self, path: str | None = None, n: int = 1000, seed: int = 0) -> Any:
        """n draws of one path for ArviZ with their log likelihood: the heaviest, or the one with this description."""
        from anabranch.report.arviz import to_arviz

        return to_arviz(self.program.name, self.solution(path), n, seed)

    def plot(self, path: str | None = None, file: str | os.PathLike[str] | None = None) -> Figure:
        """A figure of the heaviest paths (weight, evidence, evaluations), also written to `file`.

        Below are marginals of one path: the heaviest, or the one with this description.
        """
        from anabranch.report.plot import plot

        evaluations = self.run.evaluations
        return plot(self.program.name, self.solutions, self.evidence, evaluations, self.solution(path), file)

    def describe(self, path: str | None = None) -> str:
        """How the discrete variables of one path were summed out, as text: which, in which order, and at what cost.

        The path is the heaviest, or the one with this description. `anabranch.describe` says it of a path of a
        division, before a run.
        """
        return describe(self.solution(path).path, self.run.elimination)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the posterior to a folder, for `anabranch.load`; a posterior saved there before is replaced."""
        saving.save(self, folder)

    def solution(self, path: str | None = None) -> Solution:
        """The heaviest path that has draws, or the one with this description, with its estimate."""
        self._check_draws()
        for solution in self.solutions:
            if path in (None, solution.path.description) and len(solution.points):
                return solution
        known = ", ".join(repr(solution.path.description) for solution in self.solutions[:5])
        raise errors.UnknownName(f"no path with draws is described as {path!r}", remedy=f"The heaviest: {known}")

    def _check_draws(self) -> None:
        with_draws(self.solutions, self.evidence.weights)

    def _summary(self) -> Summary:
        from anabranch.report.summary import summary

        return summary(self.program.name, self.solutions, self.evidence, self.run, self.warnings)

    def __repr__(self) -> str:
        return self._summary().text()

    def _repr_html_(self) -> str:
        return self._summary().html()


def _row(solution: Solution, weight: float, weight_sd: float) -> dict[str, Any]:
    path, estimate = solution.path, solution.estimate
    return {
        "path": path.description,
        "weight": np.nan if estimate is None else weight,
        "weight_sd": np.nan if estimate is None else weight_sd,
        **{name: np.nan if estimate is None else getattr(estimate, name) for name in _DIAGNOSTICS},
        "dim": path.dim,
        "evaluations": 0 if estimate is None else estimate.evaluations,
        "terms": solution.terms,
        "visits": solution.visits,
        "method": "" if estimate is None else estimate.method,
        "prior_probability": path.prior_probability,
    }


def _takes_two(f: Callable[..., Any]) -> bool:
    """True if the function has a second positional argument without a default."""
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is p.empty for p in parameters) > 1
