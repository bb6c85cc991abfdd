"""The program of figure 2: which variables there are depends on the sign of the first."""

from typing import Any

import numpyro.distributions as dist

import anabranch as ab

__all__ = ["branching"]


def branching(y: float = 2.0) -> Any:
    """Two branches, [z0, z1] and [z0, z2, z3], and one observation."""
    z0 = ab.sample("z0", dist.Normal(0.0, 2.0))
    if z0 < 0:
        z1 = ab.sample("z1", dist.Normal(-5.0, 2.0))
        ab.observe("y", dist.Normal(z1, 2.0), y)
    else:
        z2 = ab.sample("z2", dist.Normal(5.0, 2.0))
        z3 = ab.sample("z3", dist.Normal(z2, 2.0))
        ab.observe("y", dist.Normal(z3, 2.0), y)
    return z0
