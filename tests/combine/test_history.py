"""What a run says of what it did when."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch import programs
from anabranch.combine.history import History


def test_of_dcc_each_visit_has_a_row() -> None:
    posterior = ab.infer(programs.branching, 2.0, budget=60_000, tolerance=None, seed=1)
    history = posterior.history
    assert list(history) == ["evaluations", "log_evidence", "path", "chain", "spent", "path_log_evidence"]
    assert len(history) == posterior.paths["visits"].sum()
    assert history["evaluations"].is_monotonic_increasing
    last = history.iloc[-1]
    assert last["evaluations"] == posterior.run.evaluations
    assert last["log_evidence"] == pytest.approx(posterior.log_evidence)
    for _, path in posterior.paths.iterrows():
        visits = history[history["path"] == path["path"]]
        assert visits["spent"].iloc[-1] == path["evaluations"]
        assert visits["path_log_evidence"].iloc[-1] == path["log_evidence"]


def test_of_importance_sampling_the_evidence_is_noted_as_it_grows() -> None:
    engine = ab.engines.ImportanceSampling(batch=100)
    posterior = ab.infer(programs.branching, 2.0, engine=engine, budget=20_000, tolerance=None)
    history = posterior.history
    assert set(history["path"].dropna()) == set(posterior.paths["path"])
    looks = history[history["path"].isna()]
    assert (looks["evaluations"].iloc[1:].to_numpy() > 1.02 * looks["evaluations"].iloc[:-1].to_numpy()).all()
    assert abs(looks["log_evidence"].iloc[-1] - posterior.log_evidence) < 0.05


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("chains", "budget"), [(10, 3_000), (100, 25_000), (6, 9_000)])
def test_of_chains_some_states_are_noted_for_every_chain(chains: int, budget: int) -> None:
    engine = ab.engines.RandomWalkMH(chains=chains)
    history = ab.infer(programs.branching, 2.0, engine=engine, budget=budget).history
    visits = history[history["chain"].notna()]
    assert sorted(set(visits["chain"])) == list(range(chains))
    assert len(visits) <= 4_000 * 1.5
    assert visits["evaluations"].max() <= budget + chains
    shares = visits["path"].value_counts(normalize=True)
    # The heavier path has 0.92 of the posterior: the visits are where the chains were.
    assert abs(shares.iloc[0] - 0.92) < 0.1


def test_every_path_that_a_chain_was_on_is_noted() -> None:
    def program() -> None:
        k = ab.sample("k", dist.Geometric(0.3))
        ab.observe("y", dist.Normal(float(k), 3.0), 2.0)

    posterior = ab.infer(program, engine=ab.engines.LightweightMH(chains=100), budget=100_000)
    visits = posterior.history.dropna(subset=["chain"])
    # Noted are some 4,000 states of 100,000: light paths are visited in between.
    assert set(visits["path"]) >= set(posterior.paths["path"])
    assert len(posterior.paths) > 8
    assert visits["evaluations"].is_monotonic_increasing


def test_a_history_is_saved_and_loaded(tmp_path: Path) -> None:
    posterior = ab.infer(programs.branching, 2.0, budget=20_000)
    posterior.save(tmp_path / "saved")
    assert ab.load(tmp_path / "saved").history.equals(posterior.history)


def test_what_is_not_known_is_nan_or_none() -> None:
    history = History()
    history.add(5, path="K = 3", chain=2)
    history.add(7, -1.5)
    frame = history.frame()
    assert len(history) == 2
    assert np.isnan(frame["log_evidence"][0])
    assert frame["path"].tolist() == ["K = 3", None]
    assert frame["chain"].tolist() == [2, None]
