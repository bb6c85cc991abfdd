"""Stochastic variational inference with a guide of the user's.

The guide is a program over the names of sites of the model, with parameters φ by `numpyro.param`. They are fitted by
gradients of the guide's score, with control variates (see `variational`), which suits every program, or by the pathwise
gradient (see `pathwise`), which has less noise where the program is smooth. What the guide does not draw comes from the
prior, whose density then stands on both sides of f = log γ − log q. The weights γ/q follow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from anabranch import errors
from anabranch.divide import Division, Restarted, find_paths
from anabranch.engines.importance import GUIDE, guided
from anabranch.engines.parametrised import ParametrisedGuide
from anabranch.engines.pathwise import Pathwise, check_smooth
from anabranch.engines.sampler import Sampler, Session
from anabranch.engines.variational import FEWEST, FIT, Adam, batch_size, bounded, spread, weigh
from anabranch.limits import LimitReached, Limits
from anabranch.pace import Pace
from anabranch.report.progress import make_progress
from anabranch.settings import check, one_of

__all__ = ["SVI"]


@dataclass(frozen=True)
class SVI(Sampler):
    """Variational inference with a guide.

    Args:
        guide: a program over the names of sites of the model, called with the same arguments, whose parameters are
            `numpyro.param("name", initial, constraint=...)`. What it does not draw comes from the prior.
        fit: the share of the budget, or of the time, that goes into the guide; the rest weighs executions from it.
        batch: executions for one step of the fit.
        rate: the length of the steps of the unconstrained parameters at the beginning; it falls to zero.
        estimator: of the gradient: "score" for any program, "pathwise" for one that is smooth in what the guide draws.

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
        >>> {name: float(value.round(1)) for name, value in SVI(guide).parameters(model, 1.0, budget=40_000).items()}
        {'scale': 0.7, 'loc': 0.5}
    """

    guide: Callable[..., Any]
    fit: float = 0.5
    batch: int = 200
    rate: float = 0.05
    estimator: Literal["score", "pathwise"] = "score"

    independent: ClassVar[bool] = True
    weighted: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self, guide=GUIDE, **FIT, estimator=one_of("score", "pathwise"))

    def check(self, division: Division) -> None:
        guide = ParametrisedGuide(self.guide, division.program, seed=0)
        drawn: set[Any] = set()
        with contextlib.suppress(LimitReached):  # which may end this once there was a first execution
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
        weigh(session, lambda n: guided(session.runner, guide, n))

    def parameters(
        self, program: Callable[..., Any], *args: Any, seed: int = 0, budget: int = 1_000_000, **kwargs: Any
    ) -> dict[str, np.ndarray]:
        """The parameters that `infer` with this engine, the same seed and the same budget draws with in the end."""
        division = find_paths(program, *args, executions=self.executions, seed=seed, **kwargs)
        self.check_program(division)
        with make_progress(False) as display, np.errstate(all="ignore"):
            while True:
                try:
                    return self.fitted(Session(self, division, Limits(budget), seed, display)).parameters
                except Restarted:
                    continue

    def fitted(self, session: Session) -> ParametrisedGuide:
        """The guide at the parameters that it has after its share of the budget."""
        guide = ParametrisedGuide(self.guide, session.division.program, session.guide_seed)
        pathwise = Pathwise(guide) if self.estimator == "pathwise" else None
        adam: dict[str, Adam] = {}
        pace = Pace(FEWEST)
        with session.until(self.fit):
            while session.progressed < self.fit and session.goes_on():
                rate = self.rate * max(1 - session.progressed / self.fit, 0.0)
                n = batch_size(session, self.batch, self.fit, pace)
                with pace.measured(n):
                    traces, f = guided(session.runner, guide, n)
                    gradient = _by_score(guide, f) if pathwise is None else pathwise.gradient(traces, f)
                for name, part in gradient.items():
                    step = adam.setdefault(name, Adam(part.shape)).step(part / spread(f))
                    guide.move(name, rate * step)
        return guide


def _by_score(guide: ParametrisedGuide, f: np.ndarray) -> dict[str, np.ndarray]:
    reward = bounded(f)
    return {} if reward is None else guide.gradient(reward)
