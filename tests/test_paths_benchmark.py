"""benchmarks/paths.py keeps records, continues and counts; benchmarks/peers.py gives others the same density."""

import importlib.util
import sys
from dataclasses import asdict
from pathlib import Path

import jax
import numpy as np
import pytest
from numpyro import handlers
from scipy.special import logsumexp

import anabranch as ab


@pytest.fixture(scope="module")
def benchmark():
    """The modules of the folder by name, which import each other by name."""

    def load(name):
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent.parent / "benchmarks" / f"{name}.py")
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return {name: load(name) for name in ("densities", "peers", "paths")}


@pytest.fixture
def paths(benchmark):
    return benchmark["paths"]


@pytest.fixture
def record(paths):
    """A record of ours on a density, so far from the truth."""

    def made(error, sd, **other):
        about = {"density": "ring-2", "sampler": "ours", "seed": 0, "budget": 1000, "truth": -1.0}
        spent = {"evaluations": 900, "seconds": 2.0, "processor_seconds": 1.0}
        return paths.Record(**(about | spent | {"log_evidence": error - 1.0, "sd": sd} | other))

    return made


# Runs and records -----------------------------------------------------------------------------------------------------


def test_peers_at_their_defaults_run_once_whatever_the_budget(paths):
    runs = paths.planned(["ring-2"], ["dynesty", "ours"], range(2), [1000, 2000])
    assert len(runs) == 2 * (2 + 1)
    assert {run.budget for run in runs if run.sampler == "dynesty"} == {None}


def test_ours_comes_before_those_who_take_its_evaluations(paths):
    runs = paths.planned(["ring-2"], ["pocomc-equal"], [0], [1000])
    assert [run.sampler for run in runs] == ["ours", "pocomc-equal"]


def test_runs_on_file_are_not_made_again(paths, record, tmp_path, monkeypatch):
    made = []

    def measure(runs, limit):
        made.extend(runs)
        return [record(0.1, 0.1, **asdict(run)) for run in runs]

    monkeypatch.setattr(paths, "measure", measure)
    runs = paths.planned(["ring-2"], ["ours", "dynesty-equal"], [3, 4], [1000])
    file = tmp_path / "records.jsonl"
    paths.make(runs[:2], file, 10)
    records = paths.make(runs, file, 10)
    assert [(run.sampler, run.seed, run.budget) for run in made] == [
        ("ours", 3, 1000), ("dynesty-equal", 3, 900), ("ours", 4, 1000), ("dynesty-equal", 4, 900)
    ]  # fmt: skip
    assert set(records) == set(runs) == set(paths.load(file))


@pytest.mark.slow
def test_runs_are_made_in_a_process_of_their_own_that_time_ends(paths):
    runs = paths.planned(["box-200"], ["ours"], [0, 1], [20_000])
    done = paths.measure(runs, 600)
    assert [record.run for record in done] == runs
    for record in done:
        assert record.failed is None
        assert abs(record.z) < 4
        assert record.evaluations <= 20_400
    ended = paths.measure(runs, 1)
    assert [record.failed for record in ended] == ["no answer after 1 s of a processor"] * 2


def test_a_sampler_that_is_not_there_is_a_failure_of_its_own(paths, capsys, monkeypatch):
    monkeypatch.setattr(paths.resource, "setrlimit", lambda *limit: None)  # of this process
    monkeypatch.setitem(sys.modules, "dynesty", None)
    paths.child([paths.Run("ring-2", "dynesty", 0, None)], 10)
    (answer,) = paths._answers(capsys.readouterr().out)
    assert answer["failed"].startswith("ModuleNotFoundError")


# Tables ---------------------------------------------------------------------------------------------------------------


def test_z_of_an_exact_answer_and_of_none(record):
    assert record(0.3, 0.1).z == pytest.approx(3.0)
    assert record(1e-9, 0.0).z == 0.0
    assert record(-0.1, 0.0).z == -np.inf
    assert record(0.0, None, log_evidence=None, failed="no answer").error == np.inf


def test_calibration_counts(paths, record):
    named = ["Path (always) may have up to 1 of the posterior mass: R-hat. Give the run more budget or time."]
    vague = ["The log evidence has an error of 0.1. Give the run more budget."]
    rows = [
        record(0.01, 0.01, seed=0),
        record(0.30, 0.10, seed=1),  # within 4 claimed errors, outside the interval
        record(0.90, 0.10, seed=2, warnings=named),
        record(0.90, 0.10, seed=3, warnings=vague),
        record(0.0, None, seed=4, log_evidence=None, failed="no answer after 1 s"),
        record(0.019, 0.10, density="egg-box"),
    ]
    cells = [cell.strip() for cell in paths.calibration(rows).splitlines()[2].strip("|").split("|")]
    assert cells == ["1,000", "6", "1", "3 of 5 (60.0 %)", "4 of 5 (80.0 %)", "2 of 5 (40.0 %)", "2 of 3 (66.7 %)",
                     "1 of 2"]  # fmt: skip


def test_a_report_has_a_table_and_a_picture(paths, record, tmp_path, capsys):
    failed = record(0.0, None, sampler="dynesty", budget=None, log_evidence=None, evaluations=None,
                    processor_seconds=None, failed="no answer after 5 s")  # fmt: skip
    file = tmp_path / "records.jsonl"
    paths.report([failed, record(0.01, 0.02), record(0.0, 0.0, density="egg-box")], file, calibrate=False)
    text = file.with_suffix(".md").read_text(encoding="utf-8")
    assert "| ring-2 | ours | 0 | 1,000 | +0.0100 | 0.0200 | +0.5 | 900 | 2.0 | 1.0 |  |" in text
    assert "failed: no answer after 5 s" in text
    assert file.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "| dynesty | default | 1 | 0 | 0 | 0 of 1 | inf |" in capsys.readouterr().out


# What peers see -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["shell-5", "nested-5", pytest.param("process-15-scale", marks=pytest.mark.slow), "ordered-5", "rates-3"]
)
def test_the_cube_of_quantiles_has_the_likelihood_of_the_path(benchmark, name):
    peers, density = benchmark["peers"], benchmark["densities"].BY_NAME[name]
    u = np.random.default_rng(0).uniform(0.1, 0.9, (2, density.dim))
    with jax.enable_x64(True):
        cube = peers.cube_of_quantiles(density)
        seen = cube.log_likelihood(u)
        traces = [handlers.trace(peers.Quantiles(density.program, jax.numpy.asarray(row))) for row in u]
        sites = [trace.get_trace(*density.args) for trace in traces]
    latent = [each for each, site in sites[0].items() if site["type"] == "sample" and not site["is_observed"]]
    values = {each: np.stack([np.asarray(trace[each]["value"]) for trace in sites]) for each in latent}
    [path] = ab.find_paths(density.program, *density.args).paths
    np.testing.assert_allclose(seen, path.evaluate(path.points(values)).log_likelihood, rtol=1e-6)
    assert cube.evaluations == 2


@pytest.mark.parametrize("name", ["simplex-3", "lkj-4", "paths-guard"])
def test_the_cube_of_a_reference_integrates_to_the_evidence(benchmark, name):
    peers, density = benchmark["peers"], benchmark["densities"].BY_NAME[name]
    rng = np.random.default_rng(1)
    estimates, variances = [], []
    for path in ab.find_paths(density.program, *density.args).paths:
        weights = np.exp(peers.cube_of_reference(path).log_likelihood(rng.random((50_000, path.dim))))
        estimates.append(weights.mean())
        variances.append(weights.var() / len(weights))
    sd = np.sqrt(sum(variances)) / sum(estimates)
    assert sd < 0.05
    assert abs(np.log(sum(estimates)) - density.log_evidence) < 4 * sd


def test_the_prior_that_pocomc_sees_is_normalised_within_the_path(benchmark):
    """With the probability of the path in the likelihood, so that it gives the evidence of the path."""
    peers, density = benchmark["peers"], benchmark["densities"].BY_NAME["paths-guard"]
    total = []
    for path in ab.find_paths(density.program, *density.args).paths:
        prior = peers.PathPrior(path, seed=0)
        draws = prior.rvs(50_000)
        log_likelihood = prior.log_likelihood(draws)
        total.append(logsumexp(log_likelihood) - np.log(len(draws)))
        log_density = path.evaluate(draws).log_density
        np.testing.assert_allclose(prior.logpdf(draws) + log_likelihood, log_density, rtol=1e-9)
    assert logsumexp(total) == pytest.approx(density.log_evidence, abs=0.1)
