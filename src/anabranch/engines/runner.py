"""Executes a program for an engine, a population at a time.

A population goes through the tree of decisions together. On known decision sequences no Python runs, and everything is
computed over all executions of one sequence at once.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpyro.distributions import constraints

from anabranch import errors
from anabranch.divide import Constraints, Division, Executions, Path, Restarted, Site, site_transforms, why_not_drawn
from anabranch.engines.traces import Key, Traces

__all__ = ["Runner", "check_site"]


class Runner:
    """Executes a program for an engine, counts the executions, and numbers the paths that they take.

    With `carries_values`, executions keep values of their sites when they move to another path. If the division takes
    another form, all executions so far are void (`Restarted`); of a guide, only the last ones count, and it goes on.
    """

    def __init__(self, division: Division, seed: int, carries_values: bool = False, is_guide: bool = False) -> None:
        self.division, self.carries_values, self.is_guide = division, carries_values, is_guide
        self.rng = np.random.default_rng([seed, 7])
        self.evaluations = self.invalid = 0
        self._start()

    def _start(self) -> None:
        self.program = self.division.program
        self.paths: list[Path] = []
        self._numbers: dict[Any, int] = {}
        self._sites: dict[Key, Site] = {}

    def execute(self, n: int, given: Constraints | None = None) -> Traces:
        """Execute the program n times; sites without a given value are drawn from the prior."""
        return self.traces(self.send(n, given), n)

    def send(self, n: int, given: Constraints | None = None) -> list[Executions]:
        """Execute the program n times, without the densities."""
        return self.division.send(given or Constraints(), n, seed=int(self.rng.integers(2**62)))

    def traces(self, executions: Sequence[Executions], n: int) -> Traces:
        """The traces of executions, in the order of their numbers."""
        if self.division.program is not self.program:
            if not self.is_guide:
                raise Restarted
            self._start()
        self.evaluations += n
        out = Traces.empty(self.paths, n)
        for group in executions:
            if group.path is not None:
                scores = group.scores()
                for site in group.sites:
                    self.register(site)
                out.fill(group.members, self.number(group.path), scores.log_likelihood, scores.sites)
                if group.run is not None:
                    out.points = np.full(n, None) if out.points is None else out.points
                    out.points[group.members[0]] = _point(group)
        self.invalid += int(((out.path >= 0) & ~(out.log_prior + out.log_likelihood < np.inf)).sum())
        return out

    def register(self, site: Site) -> None:
        """Remember a site that executions have met; refuse one that engines cannot draw."""
        known = self._sites.setdefault((site.name, site.shape), site)
        if known is site:
            check_site(site)
        elif self.carries_values and known.space != site.space:
            raise errors.EngineCannotRun(
                f"the site is of another kind on another path ({known.where}), discrete, real or bound to a sum, so "
                "that its values cannot be carried from one to the other",
                at=site,
                remedy="Give one of them another name, or use ab.DCC(), the default",
            )

    def site(self, key: Key) -> Site:
        """A site with that name and shape; others of them may differ in their parameters."""
        return self._sites[key]

    def number(self, path: Path) -> int:
        if path.signature not in self._numbers:
            self._numbers[path.signature] = len(self.paths)
            self.paths.append(path)
        return self._numbers[path.signature]


def _point(arrival: Executions) -> np.ndarray:
    """An execution of the interpreter as a point of its path."""
    parts, values = [np.zeros(0)], arrival.values()
    for site in arrival.sites:
        if site.fixed is not None:
            continue
        value = values[site.name]
        if not site.discrete and site.distribution.support is not constraints.real:
            value = site_transforms.coordinates_of(*arrival.parameters(site.name), value)
        parts.append(np.asarray(value, float).reshape(-1))
    return np.concatenate(parts)


def check_site(site: Site) -> None:
    """Refuse a site whose density is not that of its draws, as engines assume."""
    if why := why_not_drawn(site):
        raise errors.EngineCannotRun(
            f"engines draw from the prior, and {why}",
            at=site,
            remedy="Give the site a proper prior without a mask or a scale, or use ab.DCC(), the default",
        )
