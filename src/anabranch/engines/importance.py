"""Importance sampling: weighted executions from the prior, or from a guide (paper, section 7, "IS").

With x ~ q and w = γ(x)/q(x), Ẑ is the mean of the weights. From the prior, w is the likelihood. A guide is a program
over the same names; sites that it does not draw come from the prior, whose density cancels in the ratio.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from anabranch import errors
from anabranch.divide import divide
from anabranch.engines.runner import Runner
from anabranch.engines.sampler import Session, WeightedSampler, recordings_of
from anabranch.engines.traces import Traces
from anabranch.settings import check, function, whole

__all__ = ["GUIDE", "ImportanceSampling"]

GUIDE = function("with the arguments of the program")
"""The rule for the setting `guide`."""
_GUIDE_SHARE = 0.2
"""The share of the time for the first executions of a guide."""


@dataclass(frozen=True)
class ImportanceSampling(WeightedSampler):
    """Importance sampling from the prior, or from a guide.

    Args:
        guide: a program over the names of sites of the model, called with the same arguments; None: the prior.
        batch: executions at a time: more are faster and take more memory.

    Example:
        >>> import anabranch as ab
        >>> from anabranch import programs
        >>> posterior = ab.infer(programs.branching, 2.0, engine=ab.engines.ImportanceSampling(), budget=20_000)
        >>> abs(posterior.log_evidence - -3.1495) < 4 * posterior.log_evidence_sd
        True
    """

    guide: Callable[..., Any] | None = None
    batch: int = 10_000

    def __post_init__(self) -> None:
        check(self, guide=GUIDE.or_none(), batch=whole(1))

    def sample(self, session: Session) -> None:
        guide = None if self.guide is None else _runner_of(self.guide, session)

        def draw(n: int) -> tuple[Traces, np.ndarray]:
            if guide is not None:
                return guided(session.runner, guide, n)
            traces = session.runner.execute(n)
            return traces, traces.valid_log_likelihood

        session.collect(self.batch, draw)


def _runner_of(guide: Callable[..., Any], session: Session) -> Runner:
    """Executes the guide with the arguments of the program."""
    program = session.division.program
    division = divide(guide, program.args, program.kwargs, max_sites=program.max_sites)
    with session.until(_GUIDE_SHARE):
        division.explore(session.engine.executions, 0)
    for recording in recordings_of(division):
        for observation in recording.observations:
            raise errors.EngineCannotRun(
                "a guide only draws; it has no observations, factors or Delta sites",
                at=observation,
                remedy="Take the statement out of the guide",
            )
    return Runner(division, session.guide_seed, is_guide=True)


def guided(runner: Runner, guide: Runner, n: int) -> tuple[Traces, np.ndarray]:
    """Executions of the program with the values of the guide, and log γ/q."""
    proposed = guide.execute(n)
    traces = runner.execute(n, proposed.given())
    log_q, log_density, nowhere = proposed.log_density, traces.log_density, np.zeros(n, bool)
    for key, present in traces.present.items():
        log_q = log_q + np.where(present & ~proposed.present.get(key, nowhere), traces.log_probs[key], 0.0)
    for (name, shape), present in proposed.present.items():
        unused = present & ~traces.present.get((name, shape), nowhere) & (traces.path >= 0)
        if unused.any():
            path = traces.paths[traces.path[unused.argmax()]]
            raise errors.EngineCannotRun(
                f"the guide draws {name!r} of shape {shape} in an execution of the path ({path.description}), which "
                "does not have it",
                site=name,
                remedy="Let the guide draw a site only where the program has it, in the same shape",
            )
        if runner.site((name, shape)).discrete != guide.site((name, shape)).discrete:
            raise errors.EngineCannotRun(
                f"{name!r} is discrete in the program or in the guide, and not in the other",
                site=name,
                remedy="Let the guide draw it from a distribution of the same kind",
            )
    return traces, np.where(log_density > -np.inf, log_density - log_q, -np.inf)
