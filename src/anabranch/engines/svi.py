"""Stochastic variational inference with the user's guide.

The guide is a program over the names of sites of the model, with parameters φ by `numpyro.param`. They are fitted by
score-function gradients with control variates (see `variational`), for any program, or by the pathwise gradient (see
`pathwise`), which has less noise where the program is smooth. Sites that the guide does not draw come from the prior,
whose density cancels in f = log γ − log q. After the fit, executions from the guide have the weights γ/q.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from anabranch import errors
from anabranch.divide import Division, find_paths
from anabranch.engines.importance import GUIDE, guided
from anabranch.engines.parametrised_guide import ParametrisedGuide
from anabranch.engines.pathwise import Pathwise, check_smooth
from anabranch.engines.sampler import Session
from anabranch.engines.variational import Adam, VariationalEngine, bounded, gradient_scale
from anabranch.limits import LimitReached, Limits
from anabranch.progress import Progress
from anabranch.settings import check, one_of

__all__ = ["SVI"]


@dataclass(frozen=True)
class SVI(VariationalEngine):
    """Variational inference with the user's guide.

    Args:
        guide: a program over the names of sites of the model, called with the same arguments, whose parameters are
            `numpyro.param("name", initial, constraint=...)`. Sites that it does not draw come from the prior.
        fit: the share of the budget, or of the time, for the fit; the rest is for weighted executions from the guide.
        batch: executions for one step of the fit.
        rate: the length of the first steps of the unconstrained parameters; it falls to zero.
        estimator: of the gradient: "score" for any program, "pathwise" for one that is smooth in the guide's draws.

    Example:
        >>> import anabranch as ab, numpyro, numpyro.distributions as dist
        >>> from anabranch.engines.svi import SVI
        >>> def model(y):
        ...     ab.observe("y", dist.Normal(ab.sample("x", dist.Normal(0.0, 1.0)), 1.0), y)
        >>> def guide(y):
        ...     scale = numpyro.param("scale", 1.0, constraint=dist.constraints.positive)
        ...     ab.sample("x", dist.Normal(numpyro.param("loc", 0.0), scale))
        >>> posterior = ab.infer(model, 1.0, engine=SVI(guide), budget=40_000)
        >>> abs(posterior.log_evidence - -1.5155) < 4 * posterior.log_evidence_sd + 1e-3 < 0.01
        True
    """

    guide: Callable[..., Any]
    fit: float = 0.5
    batch: int = 200
    rate: float = 0.05
    estimator: Literal["score", "pathwise"] = "score"

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, guide=GUIDE, estimator=one_of("score", "pathwise"))

    def check(self, division: Division) -> None:
        guide = ParametrisedGuide(self.guide, division.program, seed=0)
        drawn: set[Any] = set()
        with contextlib.suppress(LimitReached):  # one execution is enough if the time is short
            for n in (1, self.executions - 1):
                drawn |= guide.execute(n).values.keys()
        if not guide.paths:
            return
        if not guide.unconstrained:
            raise errors.EngineCannotRun(
                "the guide has no parameters",
                remedy="Give it some with numpyro.param, or use ImportanceSampling(guide), which takes it as it is",
            )
        if not drawn:
            raise errors.EngineCannotRun("the guide draws nothing", remedy="Let it draw sites of the program")
        if self.estimator == "pathwise":
            check_smooth(guide.paths, "guide")
            check_smooth(division, "program")

    def sample(self, session: Session) -> None:
        guide = self.fitted(session)
        session.collect(self.draws_batch, lambda n: guided(session.runner, guide, n))

    def parameters(
        self, program: Callable[..., Any], *args: Any, seed: int = 0, budget: int = 1_000_000, **kwargs: Any
    ) -> dict[str, np.ndarray]:
        """The parameters after the fit that `infer` makes with this engine, the same seed and the same budget."""
        division = find_paths(program, *args, executions=self.executions, seed=seed, **kwargs)
        self.check_program(division)
        return self.in_session(division, Limits(budget), seed, Progress(), self.fitted).parameters

    def fitted(self, session: Session) -> ParametrisedGuide:
        def step(n: int, rate: float) -> None:
            traces, f = guided(session.runner, guide, n)
            if pathwise is not None:
                gradient = pathwise.gradient(traces, f)
            else:
                reward = bounded(f)
                gradient = {} if reward is None else guide.gradient(reward)
            for name, part in gradient.items():
                guide.move(name, rate * adam.setdefault(name, Adam(part.shape)).step(part / gradient_scale(f)))

        guide = ParametrisedGuide(self.guide, session.division.program, session.guide_seed)
        pathwise = Pathwise(guide) if self.estimator == "pathwise" else None
        adam: dict[str, Adam] = {}
        self.climb(session, step)
        return guide
