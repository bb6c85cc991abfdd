"""The posterior of a program, combined from its paths (paper, section 4.3). It is long: each question is a method."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from anabranch import errors
from anabranch.combine import decisions, diagnose, expectation, observed, prediction, probability, saving, stacking
from anabranch.combine.continuation import COPIED, OTHER_ENGINE, Continuation
from anabranch.combine.draws import Draw, Draws, by_observation, checked_number, drawn_at, draws_of, pick, with_draws
from anabranch.combine.evidence import Evidence, join
from anabranch.combine.exported import Exported
from anabranch.combine.maximum import best_point
from anabranch.combine.names import check_name, reader
from anabranch.combine.odds import Group, Odds, odds
from anabranch.combine.paths_frame import paths_frame
from anabranch.combine.probability_of_function import probability_of_function
from anabranch.combine.quantile import Interval, quantile
from anabranch.combine.solution import Run, Solution
from anabranch.combine.summary import SUMMARY_COLUMNS, summarised
from anabranch.conquer.elimination import describe
from anabranch.cores import one_blas_thread
from anabranch.divide import Program
from anabranch.limits import TOLERANCE, Limits, Tolerance, default_budget, interruptible
from anabranch.progress import make_progress
from anabranch.settings import flag, function, share, whole
from anabranch.settings import names as names_rule

if TYPE_CHECKING:
    import pandas as pd

    from anabranch.report.plots import Plots
    from anabranch.report.summary import Summary

__all__ = ["Posterior"]

_OF_DRAW = function("of a draw")
_QUANTITY = function("of a draw, or the name of a site or deterministic", or_name=True)


class Posterior(Exported):
    """The posterior of a program given its data.

    Attributes:
        program: the program with its arguments.
        solutions: the paths with their estimates, the heaviest first; paths without an estimate come last.
        run: why the run stopped, and what it cost.
        resume: what continues the run (`more`), or says why nothing does.
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
        self.resume: Continuation = OTHER_ENGINE

    def more(
        self,
        budget: int | None = None,
        seconds: float | None = None,
        tolerance: float | Tolerance | None = TOLERANCE,
        *,
        progress: bool | None = None,
        workers: int | None = None,
    ) -> Self:
        """The posterior after the run has gone on from where it was: nothing is found, compiled or computed again.

        Args:
            budget: evaluations beyond those of the run so far; by default, as many as `infer` has.
            seconds, tolerance, progress: as in `infer`, for what follows.
            workers: threads; by default the run goes on where it ran.

        A run goes on once from a posterior, also after an interrupt, and then from the one that this returns. Runs of
        `DCC` do, also in another process, from a posterior that was loaded with its program and data: to the same
        answer. There the program is divided again, and the outcomes of the visits are those that were saved.

        Example:
            >>> import anabranch as ab
            >>> from anabranch import programs
            >>> first = ab.infer(programs.branching, 2.0, budget=20_000)
            >>> second = first.more(budget=60_000)
            >>> second.run.evaluations > first.run.evaluations, second.log_evidence_sd < first.log_evidence_sd
            (True, True)
        """
        budget = whole(1).or_none()("budget", budget)
        if budget is None:
            budget = default_budget(any(each.path.interpreted for each in self.solutions))
        limits = Limits.given(self.run.evaluations + budget, seconds, tolerance)
        workers = whole(1).or_none()("workers", workers)
        progress = flag().or_none()("progress", progress)
        with one_blas_thread(), interruptible(limits), make_progress(progress, limits) as display:
            return cast(Self, self.resume(limits, workers, display))

    @cached_property
    def evidence(self) -> Evidence:
        """The evidence and the path weights, as arrays in the order of `solutions`."""
        if self.given_evidence is not None:
            return self.given_evidence
        run = self.run
        return join(self.solutions, run.prior_mass_found, run.log_possible_not_found, run.known_share)

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
        return paths_frame(self.solutions, self.evidence)

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
    def unmet(self) -> list[str]:
        """The conditions of which no execution has met one side, and values that none has met, as sentences:
        "`x > 3` (model.py:12) was never true". What is behind them is not in the posterior."""
        return list(self.run.unmet)

    @property
    def notes(self) -> list[str]:
        """What is worth knowing and no failed diagnostic, as sentences: how many variables were not summed out."""
        return diagnose.notes_of(self.solutions, self.evidence)

    def probability(self, f: str | Callable[[Draw], Any], *, max_draws: int = 4000) -> probability.Probabilities:
        """The posterior probability of each value of a discrete site, deterministic, or function of a draw.

        It is a dictionary from value to probability, the most probable first, whose `errors` has the standard error of
        each. The value None stands for executions without the name. A deterministic is discrete on a path where its
        values are text, whole numbers, booleans, or the same at every draw. A vector is a tuple. A function takes a
        `Draw`, at `max_draws` draws of a path at most, and returns text, a number, an array, or a tuple of these.

        Example:
            >>> import anabranch as ab, numpyro.distributions as dist
            >>> def coin(heads):
            ...     fair = ab.sample("fair", dist.Bernoulli(0.5))
            ...     ab.observe("heads", dist.Binomial(10, 0.5 if fair else 0.9), heads)
            >>> ab.infer(coin, 7).probability("fair")
            {1: 0.6712 ± 0, 0: 0.3288 ± 0}
            >>> ab.infer(coin, 7).probability(lambda draw: "fair" if draw["fair"] else "loaded")
            {'fair': 0.6712 ± 0, 'loaded': 0.3288 ± 0}
        """
        self._check_draws()
        max_draws = whole(1)("max_draws", max_draws)
        _QUANTITY("f", f)
        if isinstance(f, str):
            return probability.probability(self.solutions, self.evidence, f, self._conditionals)
        return probability_of_function(self.solutions, self.evidence, f, max_draws)

    @property
    def decisions(self) -> pd.DataFrame:
        """The probability of each value of each decision, with its error, in the order in which the paths have them.

        Decisions are the sites that are fixed in the paths, and deterministics that are functions of them. The value
        None stands for executions without the site. No draws are needed, whatever the number of paths.

        Example:
            >>> import anabranch as ab, numpyro.distributions as dist
            >>> def coin():
            ...     if ab.sample("fair", dist.Bernoulli(0.5)):
            ...         ab.observe("heads", dist.Binomial(10, 0.5), 9)
            ...     else:
            ...         ab.observe("heads", dist.Binomial(10, 0.8), 9)
            >>> ab.infer(coin).decisions.round(3).values.tolist()
            [['fair', 0, 0.965, 0.0], ['fair', 1, 0.035, 0.0]]
        """
        import pandas as pd

        rows = decisions.probabilities_of_decisions(self.solutions, self.evidence)
        frame = pd.DataFrame(rows, columns=decisions.ValueProbability._fields)
        # As objects: pandas makes floats of whole numbers beside None.
        frame["value"] = pd.Series([row.value for row in rows], dtype=object)
        return frame

    def expectation(self, f: str | Callable[[Draw], Any], *, max_draws: int = 4000) -> tuple[Any, Any]:
        """The posterior mean of a function of a draw, or of a site or deterministic, and its Monte Carlo error.

        f takes a `Draw` and returns a number or an array; or it is a name, such as "mu" or "mu[3]". The mean is
        conditional on the names that f reads: draws without one of them are left out, and so are those at which f is
        None. A path with more than `max_draws` draws is resampled to that many, and the error includes the resampling.
        The error is infinite if all draws come from one chain or run.
        """
        max_draws = whole(1)("max_draws", max_draws)
        return expectation.expectation(self.solutions, self.evidence, self._reader(f), max_draws)

    def quantile(self, f: str | Callable[[Draw], Any], q: Any, *, max_draws: int = 4000) -> tuple[Any, Any]:
        """The posterior quantile of a function of a draw, or of a name, and its Monte Carlo error.

        q is a number from 0 to 1 or an array of them, whose axes come first in the answer. f is as in `expectation`,
        and so are the draws that count.

        Example:
            >>> import anabranch as ab
            >>> from anabranch import programs
            >>> median, sd = ab.infer(programs.branching, 2.0, budget=20_000).quantile("z0", 0.5)
            >>> sd < 0.1
            True
        """
        shares = np.asarray(q, float)
        if not ((shares >= 0) & (shares <= 1)).all():
            raise errors.BadSetting(f"q must be a number from 0 to 1, or an array of them; got {q!r}")
        max_draws = whole(1)("max_draws", max_draws)
        values, sds = quantile(self.solutions, self.evidence, self._reader(f), shares, max_draws)
        return (values, sds) if values.ndim else (float(values), float(sds))

    def interval(self, f: str | Callable[[Draw], Any], mass: float = 0.9, *, max_draws: int = 4000) -> Interval:
        """The central interval with this posterior mass: `low` and `high`, with their errors `low_sd` and `high_sd`."""
        mass = share(zero=False, one=False)("mass", mass)
        values, sds = self.quantile(f, [(1 - mass) / 2, (1 + mass) / 2], max_draws=max_draws)
        return Interval(*_plain(values), *_plain(sds))

    def summary(self, names: Iterable[str] | None = None, mass: float = 0.9, *, max_draws: int = 4000) -> pd.DataFrame:
        """A row for each number of each site and deterministic, over all paths: `mu[0]` is the first of a vector.

        Columns: `mean` and `sd` of the posterior, given that an execution has the name; `low` and `high`, the ends of
        the central interval with this mass; `mcse`, the Monte Carlo error of the mean; `ess`, how many independent
        draws would have that error; `share`, the posterior mass of the executions that have the name.

        Example:
            >>> import anabranch as ab
            >>> from anabranch import programs
            >>> table = ab.infer(programs.branching, 2.0, budget=20_000).summary()
            >>> list(table.index), list(table.columns)
            (['z0', 'z2', 'z3', 'z1'], ['mean', 'sd', 'low', 'high', 'mcse', 'ess', 'share'])
        """
        import pandas as pd

        mass, chosen = share(zero=False, one=False)("mass", mass), names_rule().or_none()("names", names)
        max_draws = whole(1)("max_draws", max_draws)
        self._check_draws()
        for name in chosen or ():
            check_name(self.solutions, name)
        rows = summarised(self.solutions, self.evidence, chosen, mass, max_draws)
        return pd.DataFrame(rows, columns=["name", *SUMMARY_COLUMNS]).set_index("name")

    def odds(self, group: Group, against: Group | None = None, *, max_draws: int = 4000) -> Odds:
        """The odds of a group of executions against another one, a posteriori and a priori, and their Bayes factor.

        A group is a function of a `Draw` that is true for its draws. Without `against`, the other group has all other
        draws with the names that the function reads. Errors are those of the logarithms, as in `log_posterior_odds_sd`.

        Example:
            >>> import anabranch as ab
            >>> from anabranch import programs
            >>> odds = ab.infer(programs.branching, 2.0, budget=20_000).odds(lambda draw: draw["z0"] < 0)
            >>> abs(odds.prior_odds - 1) < 3 * odds.log_prior_odds_sd < 0.1  # a normal variable is as often negative
            True
        """
        _OF_DRAW("group", group)
        _OF_DRAW.or_none()("against", against)
        max_draws = whole(1)("max_draws", max_draws)
        self._check_draws()
        return odds(self.solutions, group, against, self.run.log_possible_not_found, max_draws)

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
        return prediction.called(f, self.draws(n, seed), np.random.default_rng([seed, 1]))

    def predictive(self, *args: Any, n: int = 1000, seed: int = 0, **kwargs: Any) -> Draws:
        """n executions of the program with other arguments, given posterior draws: prediction at new inputs.

        Arguments of the program that are left out are None; without any argument, it has those of the run. Every
        observation is drawn: one whose value is None in the shape of its distribution, else in the shape of the value.

        An execution goes where the values of its draw lead it with the new arguments. A site that the draw does not
        have, or whose value does not fit there (another shape, outside the support), is drawn from the prior.

        Example:
            >>> import anabranch as ab, jax.numpy as jnp, numpy as np, numpyro.distributions as dist
            >>> def line(x, y):
            ...     slope = ab.sample("slope", dist.Normal(0.0, 10.0))
            ...     ab.observe("y", dist.Normal(slope * jnp.asarray(x), 0.1), y)
            >>> posterior = ab.infer(line, np.array([1.0, 2.0]), np.array([3.0, 6.0]), budget=20_000)
            >>> new = posterior.predictive(np.array([10.0, 20.0, 30.0]))["y"]
            >>> new.shape, new.mean(axis=0).round().tolist()
            ((1000, 3), [30.0, 60.0, 90.0])
        """
        n, seed = checked_number(n, seed)
        picked = pick(self.solutions, self.evidence.weights, n, seed)
        return prediction.predictive(self.program, picked, n, seed, args, kwargs)

    def replicate(self, n: int = 1000, seed: int = 0) -> dict[str, Any]:
        """Replicated data by the name of the observation: the new data of `predictive` with the arguments of the run.

        Each is an array with the draws as its first axis, masked where an execution lacks the observation, or a list
        if the shapes differ. Data that the program computes with stay as observed.
        """
        n, seed = checked_number(n, seed)
        picked = pick(self.solutions, self.evidence.weights, n, seed)
        return prediction.replicated(self.program, picked, n, seed)

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

    @property
    def plot(self) -> Plots:
        """Pictures: `plot(file="run.png")` is an overview, `plot.tree()`, `plot.marginal("mu")` and so on one each.

        The others: `weights`, `history`, `resources`, `predictive`, `pairs`, `decisions`.
        """
        from anabranch.report.plots import Plots

        return Plots(self.program.name, self.solutions, self.evidence, self.run, self.solution, self.replicate)

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

    def _reader(self, f: str | Callable[[Draw], Any]) -> Callable[[Draw], Any]:
        """A function of a draw from a function or a name."""
        self._check_draws()
        return reader(self.solutions, _QUANTITY("f", f))

    def _check_draws(self) -> None:
        with_draws(self.solutions, self.evidence.weights)

    def _summary(self) -> Summary:
        from anabranch.report.summary import summary

        return summary(self.program.name, self.solutions, self.evidence, self.run, self.warnings)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "resume": COPIED}

    def __repr__(self) -> str:
        return self._summary().text()

    def _repr_html_(self) -> str:
        return self._summary().html()


def _plain(values: np.ndarray) -> list[Any]:
    """The rows: numbers, or arrays."""
    return values.tolist() if values.ndim == 1 else list(values)
