"""Sentences, slopes and the comparison with the paper, from records made up by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from anabranch.reproduce import beside, words
from anabranch.reproduce.convergence import errors_of
from anabranch.reproduce.rows import heavy_paths, share_of
from anabranch.reproduce.truth import all_truths

TRUTHS = all_truths()
MIXTURE = {
    "method": "paper", "runs": 3, "discovered_runs": 2, "discovered_median": 7000.0, "discovered_min": 6000.0,
    "discovered_max": 8000.0, "paths_min": 24, "paths_max": 27, "log_evidence_largest_error": 0.25, "chains": 0,
    "chains_that_moved": 0, "least_K": 2, "score_mean": 0.5, "score_sd": 1.5, "probability_median": 0.25,
}  # fmt: skip
INDUCTION = {
    "method": "default", "runs": 1, "lppd_mean": -23.05, "lppd_sd": float("nan"), "lppd_farthest": 0.004,
    "heavy_share_median": 0.5, "heavy_share_min": 0.5, "heavy_share_max": 0.5, "heavy_share_runs": 1,
}  # fmt: skip


def history(errors: np.ndarray, evaluations: np.ndarray) -> dict[str, object]:
    values = (TRUTHS.induction.log_evidence + errors).tolist()
    record = {"experiment": "convergence", "method": "paper", "seed": 0}
    return record | {"history": {"evaluations": evaluations.tolist(), "log_evidence": values}}


def test_the_slope_of_errors_is_that_of_their_end() -> None:
    n = np.geomspace(100, 10_000_000, 1_000)
    errors = np.where(n < 5_000, 50.0, 40.0 * n**-0.5)
    found = errors_of([history(errors, n), history(-errors, n)], TRUTHS.induction)
    assert found is not None
    assert found.slope == pytest.approx(-0.5, abs=0.01)
    assert found.constant == pytest.approx(40.0, rel=0.1)
    assert found.start >= 5_000
    assert found.at(1_000_000) == pytest.approx(0.04, rel=0.02)
    assert np.isnan(found.at(50))
    assert errors_of([], TRUTHS.induction) is None
    far = errors_of([history(np.full(1_000, 9.0), n)], TRUTHS.induction)
    assert far is not None
    assert np.isnan(far.slope)


def test_the_table_of_convergence_has_an_error_for_each_decade() -> None:
    n = np.geomspace(1_000, 1_000_000, 100)
    part = words.of_convergence([history(2 * n**-0.5, n)], TRUTHS)["convergence"]
    assert part.splitlines()[-1] == "| DCC, as in the paper | 1 | 0.02 | 0.0064 | 0.002 | – | -0.5 |"
    assert words.of_convergence([], TRUTHS) == {}


def test_sentences_have_the_numbers_of_the_tables() -> None:
    parts = words.of_tables({"gmm": pd.DataFrame([MIXTURE]), "induction": pd.DataFrame([INDUCTION])})
    assert parts["gmm_words"] == (
        "- `DCC.paper()` visits K = 5 in 2 of 3 runs, first after 7,000 (6,000 to 8,000) evaluations, and 24 to 27 "
        "paths in all; its error of log Z is at most 0.25."
    )
    never = MIXTURE | {"discovered_runs": 0, "discovered_median": float("nan")}
    never_words = words.of_tables({"misspecified": pd.DataFrame([never])})["misspecified_words"]
    assert never_words == "- `DCC.paper()` does not visit K = 5 in 3 runs; its error of log Z is at most 0.25."
    assert "within 0.004 nats of the exact one in 1 run, and 50% of the evaluations" in parts["induction_words"]
    assert parts["calibration"].endswith("have mean 0.50 and standard deviation 1.50 over 3 runs.")


def test_the_share_of_the_heavy_paths_by_hand() -> None:
    heavy = heavy_paths(TRUTHS.induction.weights, TRUTHS.induction)
    assert set(heavy) == {"x+sx2", "sx2+x", "sx+sx2", "sx2+sx"}
    spent = {"x+sx2": {"spent": [10, 30]}, "sx2+x": {"spent": [20]}, "x": {"spent": [5, 50]}}
    assert share_of({"resources": spent}, heavy) == pytest.approx(0.5)


def test_chains_are_told_by_how_many_moved() -> None:
    chains = MIXTURE | {"method": "rmh", "chains": 1_250, "chains_that_moved": 4}
    parts = words.of_tables({"misspecified": pd.DataFrame([chains])})
    assert parts["misspecified_words"] == (
        "- RMH, many chains: 4 of 1,250 chains changed K in the recorded states, and the least K of a chain was 2."
    )


def test_the_numbers_of_the_paper_are_beside_ours() -> None:
    lines = beside.markdown({"gmm": pd.DataFrame([MIXTURE]), "induction": pd.DataFrame([INDUCTION])}, TRUTHS)
    assert (
        "| the mixture: evaluations until K = 5 was visited | about 10,000 | – | 7,000 (6,000 – 8,000) | – |" in lines
    )
    assert "| the mixture: paths visited | 23 – 27 | infinitely many | 24 – 27 | – |" in lines
    assert "| the mixture: p(K = 5) | 0.9998 | 1 | 0.2500, median of 3 | – |" in lines
    assert "| the same, uncertain data | – | 0.9997 | – | – |" in lines
    assert "DCC, as in the paper | −28.560 ± 0.41 | -23.05 | – | -23.050 (1 run) |" in lines
    assert "Particle Gibbs | −200.824 ± 126.63 | -23.05 | – | – |" in lines
