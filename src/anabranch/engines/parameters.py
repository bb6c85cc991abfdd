"""The parameters of a program for methods that move them apart from its other sites: PMMH and SMC²."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anabranch import errors
from anabranch.divide import Constraints, Division
from anabranch.engines.particle_filter import Swept
from anabranch.engines.traces import Traces

__all__ = ["Parameters"]


@dataclass(frozen=True)
class Parameters:
    """The names of the parameters, by default the sites before the first observation, and the particles of a filter."""

    particles: int
    names: Sequence[str] | None

    def check_known(self, division: Division, engine: str) -> None:
        """Refuse names that no path has."""
        names = {name for path in division for name in path.addresses}
        for name in (each for each in self.names or () if each not in names):
            raise errors.EngineCannotRun(
                f"{engine} is to move {name!r}, which is no site of {division.program.name}",
                remedy=f"Its sites are: {', '.join(sorted(names)[:20])}",
            )

    def of(self, traces: Traces) -> Traces:
        """The executions with their parameters alone."""
        if self.names is not None:
            return traces.with_sites(key for key in traces.values if key[0] in self.names)
        out = Traces(traces.paths, traces.path, traces.log_likelihood)
        for path, rows in traces.by_path():
            observations = path.recording.observations
            first = observations[0].preceding if observations else len(path.recording.sites)
            for site in path.recording.sites[:first]:
                key = site.name, site.shape
                out.put(key, rows, traces.values[key][rows], traces.log_probs[key][rows])
        return out

    def repeated(self, marginal: Traces) -> Constraints:
        """The constraints of a filter with each of these parameters."""
        n = self.particles
        values = {key: np.repeat(column, n, axis=0) for key, column in marginal.values.items()}
        return Constraints(values, {key: np.repeat(mask, n) for key, mask in marginal.present.items()})

    def check(self, marginal: Traces, swept: Swept) -> None:
        """Refuse parameters whose density depends on the other sites of the execution."""
        usable = (swept.log_weights > -np.inf).ravel() & np.repeat(marginal.path >= 0, self.particles)
        for key, log_probs in marginal.log_probs.items():
            rows = usable & np.repeat(marginal.present[key], self.particles)
            expected = np.repeat(log_probs, self.particles)[rows]
            actual = swept.traces.log_probs.get(key, np.zeros(len(rows)))[rows]
            met = swept.traces.present.get(key, np.zeros(len(rows), bool))[rows]
            if not (met.all() and np.allclose(actual, expected, rtol=1e-8, atol=1e-8)):
                raise errors.EngineCannotRun(
                    f"the density of the parameter {key[0]!r} depends on sites that are not parameters",
                    site=key[0],
                    remedy="Name those as parameters, too, or use ParticleGibbs, which needs none",
                )
