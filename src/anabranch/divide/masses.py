"""The log probability of drawing a value of a discrete site whose parameters are constants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from anabranch.divide.forms import at, described
from anabranch.divide.internals import as_input

if TYPE_CHECKING:
    from anabranch.divide.recording import Recording, Site

__all__ = ["computed_log_mass"]


def computed_log_mass(recording: Recording, site: Site, value: np.ndarray) -> np.ndarray:
    """By the function for the form of the distribution, once that has given what the distribution gives by itself: jax
    takes milliseconds, and the tables of a restaurant have other probabilities in every path."""
    source = site.described if site.sampled_from is site.distribution else described(site.sampled_from)
    deferred = None if source is None else source.log_density(value, None, True)
    if source is None or deferred is None:
        return np.asarray(as_input(recording.traced_log_mass(site, value)))
    function, arguments = deferred
    by_form = np.asarray(at(function, arguments))
    if function.trusted:
        return by_form
    direct = np.asarray(as_input(recording.traced_log_mass(site, value)))
    if not np.isfinite(direct):
        return direct
    if not np.isclose(by_form, direct, rtol=1e-12, atol=1e-12):
        source.form.distrust(function)
        return direct
    function.trusted = True
    return by_form  # as everywhere else, to the last bit
