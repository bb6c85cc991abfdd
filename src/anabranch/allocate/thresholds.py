"""The thresholds that several steps of a run share, each defined once."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.settings import check, finite, positive, share, whole

__all__ = ["Thresholds"]


@dataclass(frozen=True)
class Thresholds:
    """When a path has mass, matters, is negligible or is one of many; and what a visit is worth.

    Args:
        weight_with_mass: weight from which on paths are proposed from a path; a smaller one finds more paths, and takes
            more executions.
        weight_that_matters: weight from which on a path must be estimated well before the run stops; a smaller one
            costs evaluations.
        evaluations_that_settle: evaluations after which the estimate of such a path is taken to have no missing mode;
            fewer stop earlier, and may miss one.
        negligible: nats below the log evidence at which a path is negligible; more visit paths with less mass.
        many_paths: paths above which each gets less: one try, no neighbours at the end, only a Laplace estimate first.
        likelihood_margin: nats by which a path may exceed the largest likelihood so far; more rule out fewer paths.
        mean_likelihood_margin: the same above the largest mean likelihood of a path, for the paths visited last.
        overrun: the factor by which a visit may exceed its evaluations; a smaller one cuts more visits short.
        min_visit: evaluations below which a visit is not worthwhile; more leave more of the budget unspent.
    """

    weight_with_mass: float = 1e-4
    weight_that_matters: float = 0.01
    evaluations_that_settle: int = 30_000
    negligible: float = 20.0
    many_paths: int = 100
    likelihood_margin: float = 50.0
    mean_likelihood_margin: float = 10.0
    overrun: float = 2.0
    min_visit: int = 500

    def __post_init__(self) -> None:
        weights, nats, numbers = share(), finite(0), whole(1)
        check(self, weight_with_mass=weights, weight_that_matters=weights, evaluations_that_settle=numbers,
              negligible=nats, many_paths=numbers, likelihood_margin=nats, mean_likelihood_margin=nats,
              overrun=positive(), min_visit=numbers)  # fmt: skip
