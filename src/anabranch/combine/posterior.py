"""The posterior of a program, joined from its paths (paper, section 4.3), and the questions that users ask of it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from anabranch import errors
from anabranch.combine import diagnose, expectation, observed, probability, saving, stacking
from anabranch.combine.draws import Draw, Draws, checked_number, drawn_at, gathered, pick, with_draws
from anabranch.combine.evidence import Evidence, join
from anabranch.combine.solution import Run, Solution
from anabranch.divide import NamedValues
from anabranch.divide.recording import Program
from anabranch.report.summary import html_summary, text_summary
from anabranch.settings import function, whole

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["Posterior"]

_OF_DRAW = function("of a draw")


class Posterior:
    """What is known of a program given its data.

    Attributes:
        program: the program with its arguments.
        solutions: the paths with what inference gave for each, the heaviest first; those without an estimate last.
        run: how the run went.
        given_evidence: the evidence and the weights of the paths as a method that samples the whole program gave them,
            in the order of `solutions`; None where they are joined from the paths.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> def coin(heads):
        ...     fair = ab.sample("fair", dist.Bernoulli(0.5))
        ...     p = 0.5 if fair else ab.sample("p", dist.Beta(1.0, 1.0))
        ...     ab.observe("heads", dist.Binomial(10, p), heads)
        >>> posterior = ab.infer(coin, 9, seed=0)
        >>> round(posterior.log_evidence, 2)  # log(1/2 · 10/1024 + 1/2 · 1/11)
        -2.99
        >>> {value: round(p, 2) for value, p in posterior.probability("fair").items()}
        {0: 0.9, 1: 0.1}
        >>> mean, sd = posterior.expectation(lambda draw: draw["p"])  # of the executions that have it: 10/12
        >>> abs(mean - 10 / 12) < 4 * sd + 1e-9
        True
        >>> posterior.draws(3, seed=1)["fair"].shape
        (3,)
    """

    def __init__(
        self, program: Program, solutions: Sequence[Solution], run: Run, evidence: Evidence | None = None
    ) -> None:
        """Join the paths; `evidence`, in the order of these solutions, takes the place of joining theirs."""
        self.program, self.run = program, run
        order = sorted(range(len(solutions)), key=lambda k: _rank(solutions[k]))
        self.solutions = tuple(solutions[k] for k in order)
        self.given_evidence = None if evidence is None else evidence.reordered(order)

    @cached_property
    def evidence(self) -> Evidence:
        """The evidence and the weights of the paths, as arrays in the order of `solutions`."""
        return join(self.solutions, self.run) if self.given_evidence is None else self.given_evidence

    @property
    def log_evidence(self) -> float | None:
        """log Z, the log of the marginal likelihood of the data; None from an engine without it, such as MCMC."""
        return self.evidence.log_evidence

    @property
    def log_evidence_sd(self) -> float | None:
        """The standard error of `log_evidence`; None from an engine without it, such as MCMC.

        Where paths are solved one by one, it joins their Monte Carlo errors with a term for what was never found or
        never solved, as if that were as likely as the rest.
        """
        return self.evidence.log_evidence_sd

    @property
    def paths(self) -> pd.DataFrame:
        """A row for each path, the heaviest first; NaN where a path was never given budget, or has no evidence."""
        import pandas as pd

        rows = zip(self.solutions, self.evidence.weights, self.evidence.weight_sds, strict=True)
        frame = pd.DataFrame([_row(solution, float(weight), float(sd)) for solution, weight, sd in rows])
        if self.log_evidence is None:
            frame[["log_evidence", "log_evidence_sd"]] = np.nan  # a share of the posterior is no evidence
        return frame

    @property
    def history(self) -> pd.DataFrame:
        """What the run did when: a row for each visit of a path, with what was known of the evidence by then.

        Columns: `evaluations` of the whole run by then, `log_evidence`, and, where the row is about a visit, the
        `path`, the `chain` that was there (of engines that run chains, of which some steps are noted), the evaluations
        `spent` on the path by then, and `path_log_evidence`. What was not known is NaN or None.
        """
        return self.run.history.frame()

    @property
    def warnings(self) -> list[str]:
        """What is in doubt, in sentences that name the path and the remedy."""
        return diagnose.warnings_of(self.solutions, self.evidence, self.run)

    # Questions --------------------------------------------------------------------------------------------------

    def probability(self, name: str) -> dict[Any, float]:
        """The posterior probability of each value of a discrete site or deterministic, the most probable first.

        Over all executions: the probability of None is that of not having the name. A deterministic counts as discrete
        on a path where it is whole numbers, booleans, or the same at every draw. A vector is a tuple.
        """
        self._check_draws()
        return probability.probability(self.solutions, self.evidence.weights, name)

    def expectation(self, f: Callable[[Draw], Any], *, most: int = 4000) -> tuple[Any, Any]:
        """The posterior mean of a function of a draw, and its Monte Carlo error.

        f is given a `Draw` and returns a number or an array. Draws that lack a name which f asks for are left out, and
        the weights of the others normalised: the mean is conditional on having it. f is called at most `most` times for
        a path, on draws resampled if there are more, which the error accounts for. It is infinite where all draws come
        from one chain or run.
        """
        _OF_DRAW("f", f)
        most = whole(1)("most", most)
        self._check_draws()
        return expectation.expectation(self.solutions, self.evidence.weights, f, most)

    def draws(self, n: int, seed: int = 0) -> Draws:
        """n equally weighted executions, in random order."""
        n, seed = checked_number(n, seed)
        out: list[Any] = [None] * n
        for picked in pick(self.solutions, self.evidence.weights, n, seed):
            for i, draw in drawn_at(picked.solution.path, picked.points):
                out[picked.positions[i]] = draw
        return Draws(out)

    def predict(self, f: Callable[..., Any], n: int = 1000, seed: int = 0) -> Any:
        """f(draw), or f(draw, rng) with a NumPy generator, for each of n draws: one array, or a list if they differ.

        With the distributions of NumPy this is posterior prediction:
        `posterior.predict(lambda draw, rng: rng.normal(draw["mu"], 1.0))`.
        """
        _OF_DRAW("f", f)
        n, seed = checked_number(n, seed)
        rng = np.random.default_rng([seed, 1])
        arguments = (rng,) if _takes_two(f) else ()
        return gathered([f(draw, *arguments) for draw in self.draws(n, seed)])

    def replicate(self, n: int = 1000, seed: int = 0) -> dict[str, Any]:
        """New data from the program by name, one for each of n draws: each observation drawn from its distribution.

        An array with the draws as its first axis; masked where an execution lacks the observation, and a list where the
        shapes differ. The distribution is that of the execution: data that a program computes with stays as observed.
        """
        n, seed = checked_number(n, seed)
        rng = np.random.default_rng([seed, 2])
        return self._by_observation(n, seed, lambda path, points: observed.replicates(path, points, rng))

    def log_likelihood(self, n: int = 1000, seed: int = 0) -> dict[str, Any]:
        """The log density of each part of each observation, and of each factor, at n draws, as `replicate` has them."""
        return self._by_observation(*checked_number(n, seed), observed.log_likelihoods)

    def _by_observation(self, n: int, seed: int, compute: Callable[..., list[NamedValues]]) -> dict[str, Any]:
        out: dict[str, list[Any]] = {}
        for picked in pick(self.solutions, self.evidence.weights, n, seed):
            for part in compute(picked.solution.path, picked.points):
                for name, values in part.values.items():
                    column = out.setdefault(name, [None] * n)
                    for position, value in zip(picked.positions[part.index], values, strict=True):
                        column[position] = value
        return {name: gathered(column) for name, column in out.items()}

    def stacking(self, paths: int = 20) -> pd.DataFrame:
        """Weights of paths by how well they predict each part of the data from the rest (Yao et al., 2018).

        Of the heaviest paths, those with the same observations as the first: the others are left out, and a warning
        is logged with how many they are and their weight. `elpd` is the expected log predictive density by PSIS-LOO,
        and `pareto_k`, the largest of its ratios, should be below 0.7. Where it is not, a warning is logged, too; it is
        NaN where the draws are too few, or too many of them alike (a discrete site), for a tail.
        """
        import pandas as pd

        paths = whole(1)("paths", paths)
        self._check_draws()
        heaviest = zip(self.solutions[:paths], self.evidence.weights[:paths], strict=True)
        stacked = stacking.stack([(solution, float(weight)) for solution, weight in heaviest if len(solution.points)])
        rows = [
            {
                "path": each.solution.path.description,
                "stacking_weight": each.stacking_weight,
                "weight": each.weight,
                "elpd": each.elpd,
                "pareto_k": each.pareto_k,
            }
            for each in stacked
        ]
        return pd.DataFrame(rows).sort_values("stacking_weight", ascending=False, ignore_index=True)

    # Elsewhere --------------------------------------------------------------------------------------------------

    def to_arviz(self, path: str | None = None, n: int = 1000, seed: int = 0) -> Any:
        """Draws of one path for ArviZ, with their log likelihood: of the heaviest, or of that with this description."""
        from anabranch.report.arviz import to_arviz

        return to_arviz(self, self.solution(path), n, seed)

    def plot(self, path: str | None = None, file: str | os.PathLike[str] | None = None) -> Figure:
        """A picture of the heaviest paths (weight, evidence if there is, evaluations), written to `file` if given.

        Below them are marginals of one path: the heaviest, or that with this description.
        """
        from anabranch.report.plot import plot

        return plot(self, self.solution(path), file)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write everything to a folder, for `anabranch.load`; what was saved there before is replaced."""
        saving.save(self, folder)

    def solution(self, path: str | None = None) -> Solution:
        """The heaviest path, or that with this description, with its estimate; it must have draws."""
        self._check_draws()
        for solution in self.solutions:
            if path in (None, solution.path.description) and len(solution.points):
                return solution
        known = ", ".join(repr(solution.path.description) for solution in self.solutions[:5])
        raise errors.UnknownName(f"no path with draws is described as {path!r}", remedy=f"The heaviest: {known}")

    def _check_draws(self) -> None:
        with_draws(self.solutions, self.evidence.weights)

    def __repr__(self) -> str:
        return text_summary(self)

    def _repr_html_(self) -> str:
        return html_summary(self)


def _rank(solution: Solution) -> tuple[bool, float, float]:
    return solution.estimate is None, -solution.log_evidence, -solution.path.log_prior_probability


def _row(solution: Solution, weight: float, weight_sd: float) -> dict[str, Any]:
    path, estimate = solution.path, solution.estimate
    unknown = estimate is None
    return {
        "path": path.description,
        "weight": np.nan if unknown else weight,
        "weight_sd": np.nan if unknown else weight_sd,
        "log_evidence": np.nan if estimate is None else estimate.log_evidence,
        "log_evidence_sd": np.nan if estimate is None else estimate.log_evidence_sd,
        "ess": np.nan if estimate is None else estimate.ess,
        "pareto_k": np.nan if estimate is None else estimate.pareto_k,
        "r_hat": np.nan if estimate is None else estimate.r_hat,
        "dim": path.dim,
        "evaluations": 0 if estimate is None else estimate.evaluations,
        "visits": solution.visits,
        "method": "" if estimate is None else estimate.method,
        "prior_probability": path.prior_probability,
    }


def _takes_two(f: Callable[..., Any]) -> bool:
    """Whether a function asks for a second argument; one that has a default for it does not."""
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):  # some functions written in C do not say
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is p.empty for p in parameters) > 1
