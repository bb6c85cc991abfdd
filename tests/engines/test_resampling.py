"""Resampling is unbiased: a particle has on average as many children as its share of the weight."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.engines import SMC
from anabranch.engines.particle_filter import SCHEMES, effective_sizes, resampled

WEIGHTS = np.array([0.05, 0.4, 0.0, 0.25, 0.3])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_children_are_as_many_as_the_weight_says(scheme: str) -> None:
    rows = 20_000
    with np.errstate(divide="ignore"):
        chosen = resampled(np.tile(np.log(WEIGHTS), (rows, 1)), scheme, np.random.default_rng(0))
    counts = (chosen[:, :, None] == np.arange(5)).sum(axis=1)
    error = counts.std(axis=0) / np.sqrt(rows)
    assert (np.abs(counts.mean(axis=0) - 5 * WEIGHTS) <= 4 * error).all()
    assert (counts[:, 2] == 0).all()
    largest = {"multinomial": 5, "stratified": 3, "systematic": 2}[scheme]
    assert counts[:, 1].max() == largest


def test_multinomial_ancestors_come_in_no_order() -> None:
    """One of them is replaced by a reference: if they were in order, it would be the one with the lowest number."""
    chosen = resampled(np.zeros((20_000, 4)), "multinomial", np.random.default_rng(0))
    assert np.abs(chosen.mean(axis=0) - 1.5).max() < 4 * np.sqrt(1.25 / 20_000)


def test_rows_do_not_mix() -> None:
    log_weights = np.full((3, 4), -np.inf)
    log_weights[0, 1], log_weights[1, 0], log_weights[1, 3] = -1e4, -700.0, -700.0
    chosen = resampled(log_weights, "systematic", np.random.default_rng(0))
    assert (chosen[0] == 1).all()
    assert sorted(chosen[1]) == [0, 0, 3, 3]
    assert sorted(chosen[2]) == [0, 1, 2, 3]  # nothing to choose by: all stay


def test_effective_sizes() -> None:
    log_weights = np.array([[0.0, 0.0, -np.inf, -np.inf], [-5e3, -5e3, -5e3, -5e3], [-np.inf] * 4])
    assert effective_sizes(log_weights) == pytest.approx([2.0, 4.0, 0.0])


def test_what_is_not_a_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="resampling must be one of multinomial, stratified, systematic; got 'sorted'"):
        SMC(resampling="sorted")
    with pytest.raises(ValueError, match="threshold must be a share"):
        SMC(threshold=1.5)
