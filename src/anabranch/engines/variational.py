"""What the variational engines have in common: the gradient of the bound, steps along it, and weights in the end.

A guide q with parameters φ is fitted to maximise the bound (the ELBO)

    L(φ) = E_q[f(x)] ≤ log Z,        f(x) = log γ(x) − log q(x; φ),

whose gradient needs no derivative of the program (Ranganath, Gerrish and Blei, Black Box Variational Inference, 2014):

    ∇L = E_q[∇ log q(x; φ) (f(x) − b)]        for every b that does not depend on x.

With executions x_1, ..., x_n, b_i is the mean of the other f: the control variate. Where γ(x) is zero, f is minus
infinity, and so is L for every guide that goes there. For the gradient alone f is therefore bounded from below, some
way under the highest f of the batch, so that the guide keeps away from such places as far as it pays. The gradient is
also divided by the standard deviation of f where that is above one: Adam remembers large gradients of the first steps
for long.

No guide is the posterior, so the evidence is not the bound: once the guide is fitted, executions from it have weights
γ/q, whose mean is Z without bias.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from anabranch.engines.sampler import Session
from anabranch.engines.traces import Traces
from anabranch.pace import Pace
from anabranch.settings import positive, share, whole

__all__ = ["FEWEST", "FIT", "Adam", "batch_size", "bounded", "centred", "spread", "weigh"]

_DEPTH, _SPREADS = 50.0, 10.0
"""How far f may be below its highest value: so many nats, or so many times as far as its median, if that is more."""
_DRAWS = 2_000
_TINY = 1e-12
FEWEST = 10
"""Executions of a step of the fit, at least."""


FIT = {"fit": share(zero=False, one=False), "batch": whole(FEWEST), "rate": positive()}
"""What the settings must be with which a guide is fitted."""


def bounded(f: np.ndarray) -> np.ndarray | None:
    """f with a bound from below; None if all are −∞."""
    finite = f[f > -np.inf]
    if not len(finite):
        return None
    highest = finite.max()
    return np.maximum(f, highest - max(_DEPTH, _SPREADS * (highest - np.median(finite))))


def spread(f: np.ndarray) -> float:
    """What a gradient is divided by: the standard deviation of the bounded f, at least one."""
    reward = bounded(f)
    return 1.0 if reward is None else max(1.0, float(reward.std()))


def centred(f: np.ndarray) -> np.ndarray:
    """f_i − b_i, with b_i the mean of all but f_i."""
    return (f - f.mean()) * (len(f) / (len(f) - 1))


class Adam:
    """Steps along noisy gradients (Kingma and Ba, Adam, 2015), of a length of about one in each parameter."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.first, self.second, self.steps = np.zeros(shape), np.zeros(shape), 0

    def step(self, gradient: np.ndarray) -> np.ndarray:
        """The next step upwards."""
        self.steps += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.99 * self.second + 0.01 * gradient**2
        return (self.first / (1 - 0.9**self.steps)) / (np.sqrt(self.second / (1 - 0.99**self.steps)) + _TINY)


def batch_size(session: Session, batch: int, fit: float, pace: Pace) -> int:
    """Executions for the next step of a fit, which has a share of the budget and of the time."""
    left = int(fit * session.limits.budget) - session.runner.evaluations
    return min(max(pace.size(batch), FEWEST), max(left, 2), session.left)


def weigh(session: Session, draw: Callable[[int], tuple[Traces, np.ndarray]]) -> None:
    """Draw executions with their log weights into the collection, for as long as the session goes on."""
    session.collect(_DRAWS, draw)
