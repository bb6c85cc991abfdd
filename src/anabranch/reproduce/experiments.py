"""The experiments: program, data, methods, and the measures of a run.

Those of section 7 are `gmm`, `misspecified` and `induction`. Beside them are the mixture with data for which the number
of clusters is uncertain (`uncertain`), the error of log Z up to ten times the evaluations (`convergence`), and the
mixture of figure 1 (`planar`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import programs
from anabranch.inference import Engine
from anabranch.reproduce import measures

__all__ = ["BUDGET", "ENGINES", "EXPERIMENTS", "Experiment"]

BUDGET = 1_000_000
"""Evaluations of a run, of every method."""

ENGINES: Mapping[str, Engine] = {
    "default": ab.DCC(),
    "paper": ab.DCC.paper(max_active=20),
    "is": ab.engines.ImportanceSampling(),
    "rmh": ab.engines.RandomWalkMH(chains=250),
    "rmh_single": ab.engines.RandomWalkMH(chains=1),
    "rmh_centred": ab.engines.RandomWalkMH(chains=250, importance_samples=0.5),
    "pg": ab.engines.ParticleGibbs(particles=500),
    "ipmcmc": ab.engines.IPMCMC(),
    "bbvi": ab.engines.BBVI(batch=1_000),
}
"""The methods: our default, the paper's algorithm, and the baselines of the paper.

RMH has 250 chains, or one, as the words of the paper suggest.
"""

LONG_CHAINS: Mapping[str, Engine] = {
    "default": ENGINES["default"],
    # Of ninety sites one decides: a path is proposed so seldom that it must become active at once.
    "paper": ab.DCC.paper(C_0=1, growth=0.0, max_active=20),
    # Few and long chains: they start near K = 91.
    "rmh": ab.engines.RandomWalkMH(chains=10),
    "rmh_single": ENGINES["rmh_single"],
}

TO_THE_LIMIT: Mapping[str, Engine] = {"default": ENGINES["default"], "paper": ab.DCC.paper()}
"""The two whose consistency the documentation discusses."""


@dataclass(frozen=True)
class Experiment:
    """A program with its data, the methods, the runs of each, and the measures of a run.

    `quick_budget` is the budget of the quick version, with one run per method, and `budget` that of the other. Methods
    that are `not_quick`, as one chain that makes as many steps as many do, are left out of the quick version.
    """

    program: Callable[..., Any]
    args: tuple[Any, ...]
    engines: Mapping[str, Engine]
    runs: int
    measure: Callable[[ab.Posterior], dict[str, Any]]
    quick_budget: int
    budget: int = BUDGET
    not_quick: tuple[str, ...] = ()

    @property
    def quick_methods(self) -> list[str]:
        """The methods of the quick version."""
        return [method for method in self.engines if method not in self.not_quick]


def _induction() -> Experiment:
    (x, y), (x_test, y_test) = programs.function_induction_data(), programs.function_induction_test_data()
    everywhere = np.concatenate([x, x_test, measures.GRID_X])
    return Experiment(programs.function_induction, (everywhere, y), ENGINES, 15, measures.of_induction(y_test), 160_000,
                      not_quick=("rmh_single",))  # fmt: skip


EXPERIMENTS: Mapping[str, Experiment] = {
    "gmm": Experiment(programs.mixture, (programs.mixture_data(),), ENGINES, 15, measures.of_mixture, 10_000),
    "uncertain": Experiment(programs.mixture, (programs.uncertain_mixture_data(),), ENGINES, 5, measures.of_clusters,
                            2_000),
    "misspecified": Experiment(programs.misspecified_mixture, (programs.mixture_data(),), LONG_CHAINS, 5,
                               measures.of_misspecified_mixture, 1_000),
    "induction": _induction(),
    "convergence": Experiment(programs.function_induction, programs.function_induction_data(), TO_THE_LIMIT, 5,
                              measures.of_nothing, 30_000, 10 * BUDGET),
    "planar": Experiment(programs.planar_mixture, (programs.planar_mixture_data(),), {"default": ENGINES["default"]}, 1,
                         measures.of_planar_mixture, 10_000, 100_000),
}  # fmt: skip
