"""What the variational engines have in common: the gradient of the bound, and steps along it.

A guide q with parameters φ is fitted to maximise the bound (the ELBO)

    L(φ) = E_q[f(x)] ≤ log Z,        f(x) = log γ(x) − log q(x; φ),

whose gradient needs no derivative of the program (Ranganath, Gerrish and Blei, Black Box Variational Inference, 2014):

    ∇L = E_q[∇ log q(x; φ) (f(x) − b)]        for every b that does not depend on x.

With executions x_1, ..., x_n, b_i is the mean of the other f: the control variate. Where γ(x) is zero, f and the bound
are minus infinity. For the gradient alone f is therefore bounded from below, relative to the largest f of the batch, so
that the guide moves away from such executions. The gradient is divided by the standard deviation of f where that is
above one, since Adam's averages would keep the large gradients of the first steps for long.

The evidence is not the bound: executions from the fitted guide have weights γ/q, whose mean is unbiased for Z.
"""

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from anabranch.engines.sampler import Session, WeightedSampler
from anabranch.limits import Pace
from anabranch.settings import check, positive, share, whole

__all__ = ["MIN_BATCH", "Adam", "VariationalEngine", "bounded", "centred", "gradient_scale"]

_DEPTH, _MEDIANS = 50.0, 10.0
"""How far f may be below its maximum: so many nats, or so many times as far as its median, if that is more."""
_TINY = 1e-12
MIN_BATCH = 10
"""Executions that a step of the fit, and a first factor of a guide, need: fewer have too noisy a gradient."""


class VariationalEngine(WeightedSampler):
    """An engine that fits a guide with a part of the budget, and draws weighted executions from it with the rest."""

    fit: float
    batch: int
    rate: float

    draws_batch: ClassVar[int] = 2_000
    """Weighted executions at a time: more are faster and take more memory."""

    def __post_init__(self) -> None:
        check(self, fit=share(zero=False, one=False), batch=whole(MIN_BATCH), rate=positive())

    def climb(self, session: Session, step: Callable[[int, float], None]) -> None:
        """Call `step(executions, rate)` for the fit's share of the session; the rate falls to zero."""
        pace = Pace(MIN_BATCH)
        with session.until(self.fit):
            while session.progressed < self.fit and session.goes_on():
                rate = self.rate * max(1 - session.progressed / self.fit, 0.0)
                left = int(self.fit * session.limits.budget) - session.runner.evaluations
                n = min(max(pace.size(self.batch), MIN_BATCH), max(left, 2), session.left)
                with pace.measured(n):
                    step(n, rate)


def bounded(f: np.ndarray) -> np.ndarray | None:
    """f with a bound from below; None if all are −∞."""
    finite = f[f > -np.inf]
    if not len(finite):
        return None
    largest = finite.max()
    return np.maximum(f, largest - max(_DEPTH, _MEDIANS * (largest - np.median(finite))))


def gradient_scale(f: np.ndarray) -> float:
    """The divisor of a gradient: the standard deviation of the bounded f, at least one."""
    reward = bounded(f)
    return 1.0 if reward is None else max(1.0, float(reward.std()))


def centred(f: np.ndarray) -> np.ndarray:
    """f_i − b_i, with b_i the mean of all but f_i."""
    return (f - f.mean()) * (len(f) / (len(f) - 1))


class Adam:
    """Adam (Kingma and Ba, 2015): steps along noisy gradients, of a length of about one in each parameter."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.first, self.second, self.steps = np.zeros(shape), np.zeros(shape), 0

    def step(self, gradient: np.ndarray) -> np.ndarray:
        """The next step upwards."""
        self.steps += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.99 * self.second + 0.01 * gradient**2
        return (self.first / (1 - 0.9**self.steps)) / (np.sqrt(self.second / (1 - 0.99**self.steps)) + _TINY)
