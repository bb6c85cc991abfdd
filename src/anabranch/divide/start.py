"""Lead executions to paths that the user names, by values of some of their sites.

The other sites are drawn from the prior. The executions are no prior draws, so that they say nothing of the prior
probabilities of the paths: those are exact, or counted, as they are for any other path.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from anabranch import errors
from anabranch.divide.batch import Constraints
from anabranch.divide.division import Division
from anabranch.divide.executions import Executions
from anabranch.divide.recording import Site

__all__ = ["check_start_names", "lead_to", "sites_not_met", "that_have"]


def lead_to(division: Division, values: Mapping[str, Any], executions: int, seed: int) -> list[Executions]:
    """Execute the program with these values of some sites; raise `BadSetting` for a value that no site can have."""
    rows = {name: np.stack([np.asarray(value)] * executions) for name, value in values.items()}
    # A value that a site cannot have is drawn instead: the program need not run with it.
    arrivals = division.send(Constraints(rows, redraw_outside=True), executions, seed, solving=True)
    for name, value in values.items():
        met = [(site, _has(group, site, value)) for group, site in _met(arrivals, name)]
        if met and not any(has.any() for _, has in met):
            _refuse(met[0][0], value)
    return arrivals


def that_have(arrivals: Iterable[Executions], values: Mapping[str, Any]) -> Iterator[Executions]:
    """The groups of executions that took a path on which the named sites have these values, where they are met."""
    for group in arrivals:
        if group.path is None:
            continue
        sites = [site for site in group.recording.sites if site.name in values]
        if sites and all(_has(group, site, values[site.name]).any() for site in sites):
            yield group


def sites_not_met(arrivals: Iterable[Executions], values: Mapping[str, Any]) -> list[str]:
    """The named sites that none of the executions has met."""
    met = {site.name for group in arrivals if group.path is not None for site in group.recording.sites}
    return [name for name in values if name not in met]


def check_start_names(division: Division, names: Iterable[str]) -> None:
    """Raise `BadSetting` for the name of an observation, and `UnknownName` for that of a site that no path has, with
    those that look like it."""
    paths = division.by_signature.values()
    known = {address for path in paths for address in path.addresses}
    observed = {each.name: each for path in paths for each in path.recording.observations}
    for name in names:
        if name not in known and name in observed:
            raise errors.BadSetting(
                "start gives it a value, but it is observed: its value is the datum",
                at=observed[name],
                remedy="Name sites that are drawn, or pass other data to the program",
            )
        if name not in known:
            raise errors.UnknownName.among(f"start names the site {name!r}, which no execution has met", name, known)


def _met(arrivals: Iterable[Executions], name: str) -> Iterator[tuple[Executions, Site]]:
    for group in arrivals:
        if group.path is not None:
            yield from ((group, site) for site in group.recording.sites if site.name == name)


def _has(group: Executions, site: Site, value: Any) -> np.ndarray:
    """Which of the executions have this value of the site."""
    values = group.values()[site.name]
    if np.shape(value) != site.shape:
        return np.zeros(len(values), bool)
    return (values == np.asarray(value)).reshape(len(values), -1).all(axis=1)


def _refuse(site: Site, value: Any) -> None:
    if np.shape(value) != site.shape:
        shape = f"have shape {site.shape}" if site.shape else "be one number"
        what, remedy = f"start gives it {value}, but its value must {shape}", "Give it a value of that shape"
    elif site.discrete and not (np.asarray(value) == np.round(value)).all():
        what, remedy = f"start gives it {value}, but it is discrete", "Give it a whole number"
    else:
        what = f"start gives it {value}, which has prior probability zero there"
        remedy = "Give it a value that its distribution can draw, given the other values"
    raise errors.BadSetting(what, at=site, remedy=remedy)
