"""Sequential Monte Carlo: a bootstrap particle filter over the observations of a program (paper, appendix A).

With moves of the particles after each resampling it is resample-move SMC (`rejuvenation.py`).
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from anabranch.engines.particle_filter import SCHEME, Filter
from anabranch.engines.rejuvenation import Rejuvenation
from anabranch.engines.sampler import EvidenceSampler, Session, recordings_of
from anabranch.limits import Pace
from anabranch.settings import check, whole

__all__ = ["SMC"]


@dataclass(frozen=True)
class SMC(EvidenceSampler):
    """A bootstrap particle filter, run again and again; each run counts with its own evidence.

    Args:
        particles: of a run; fewer where the budget or the time is too small for `min_runs` runs.
        resampling: "multinomial", "stratified" or "systematic".
        threshold: the effective share of the particles below which they are resampled; 1: always.
        rejuvenation: steps of single-site Metropolis-Hastings of each particle after it was resampled (resample-move
            SMC): more make copies of a particle differ, and each costs an execution.
        min_runs: runs that the budget should allow for: more of them estimate the error better, with fewer particles.
        batch: particles of all runs at a time: more are faster and take more memory.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> def walk(y):
        ...     x = 0.0
        ...     for t in range(len(y)):
        ...         x = ab.sample(f"x{t}", dist.Normal(x, 1.0))
        ...         ab.observe(f"y{t}", dist.Normal(x, 1.0), y[t])
        >>> posterior = ab.infer(walk, [0.5, 1.0, 2.0], engine=ab.engines.SMC(), budget=100_000)
        >>> abs(posterior.log_evidence - -4.5393) < 4 * posterior.log_evidence_sd
        True
    """

    particles: int = 1_000
    resampling: str = "systematic"
    threshold: float = 0.5
    rejuvenation: int = 0
    min_runs: int = 20
    batch: int = 20_000

    sequential: ClassVar[bool] = True
    independent: ClassVar[bool] = True
    min_draws: ClassVar[int] = 50
    saving: ClassVar[str] = ", or use fewer particles"

    def __post_init__(self) -> None:
        check(self, particles=whole(1), **SCHEME, rejuvenation=whole(), min_runs=whole(1), batch=whole(1))

    def sample(self, session: Session) -> None:
        moves = Rejuvenation(self.rejuvenation) if self.rejuvenation else None
        filters = Filter(self.particles, self.resampling, self.threshold, rejuvenation=moves)
        each = self._executions_of_a_particle(session)
        particles = min(self.particles, max(filters.allowed(session) // (each * self.min_runs), 1))
        filters, runs, pace = replace(filters, particles=particles), 0, Pace()
        while session.goes_on(needs=each * particles):
            number = pace.size(min(session.left // (each * particles), max(self.batch // particles, 1)))
            with pace.measured(number):
                swept = filters.sweep(session.runner, number, session.rng)
            blocks = runs + np.arange(number)
            runs += number
            log_weights = swept.log_weights - np.log(particles)
            session.collection.add(swept.traces, log_weights.ravel(), np.repeat(blocks, particles), blocks)

    def _executions_of_a_particle(self, session: Session) -> int:
        """The most executions of a particle: itself, and its steps after each observation but the last."""
        observations = [len(recording.observations) for recording in recordings_of(session.division)]
        return 1 + self.rejuvenation * (max(observations, default=1) - 1)
