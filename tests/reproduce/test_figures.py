"""Figures, tables and the page of a reproduction, from records made up at a fixed seed."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from anabranch.reproduce import experiments, figures, page, table
from anabranch.reproduce.figures import FIGURES
from anabranch.reproduce.figures.labels import METHODS, probability_text
from anabranch.reproduce.page import SECTIONS
from anabranch.reproduce.truth import all_truths

BUDGET = 1_000_000
Y, X = np.linspace(0, 20, 401), np.linspace(-2, 2, 201)
CENTRES = np.array([2.1, 5.7, 10.4, 13.2, 18.9])
TRUTHS = all_truths()
# By method: the size of the error of log Z at the end, p(K = 5), the distance of the LPPD from the exact one, seconds.
QUALITY = {
    "default": (1e-3, 0.9998, 0.1, 20.0),
    "paper": (0.1, 0.99, 0.5, 60.0),
    "is": (2000.0, 0.0, 45.0, 8.0),
    "rmh": (None, 0.05, 4.0, 90.0),
    "rmh_single": (None, 0.0, 40.0, 500.0),
    "rmh_centred": (300.0, 0.05, 4.0, 120.0),
    "pg": (None, 0.0, 170.0, 15.0),
    "ipmcmc": (None, 0.0, 42.0, 25.0),
    "bbvi": (None, 0.3, 60.0, 200.0),
}


def density(centres):
    """An even mixture of normals, as a new y would have it."""
    return np.mean([np.exp(-((Y - c) ** 2) / 0.02) / np.sqrt(0.02 * np.pi) for c in centres], axis=0)


def made_up_records(runs=4, points=300):
    """A plausible record of each run of each method."""
    rng = np.random.default_rng(0)
    made = {
        "gmm": mixture_record, "uncertain": uncertain_record, "misspecified": misspecified_record,
        "induction": induction_record, "convergence": convergence_record, "planar": planar_record,
    }  # fmt: skip
    return [
        common(rng, experiment, method, seed) | make(rng, method, points)
        for experiment, make in made.items()
        for method in METHODS
        for seed in range(runs)
        if method in experiments.EXPERIMENTS[experiment].engines and seed < experiments.EXPERIMENTS[experiment].runs
    ]


def common(rng, experiment, method, seed):
    seconds = float(QUALITY[method][3] * rng.lognormal(0, 0.2))
    settings = {"default": "DCC()", "paper": "DCC(paper=True)"}.get(method, method.upper() + "()")
    about = {"experiment": experiment, "method": method, "seed": seed, "budget": BUDGET, "settings": settings}
    return about | {"version": "0.1.0", "evaluations": BUDGET, "seconds": seconds, "paths": int(rng.integers(20, 28))}


def history_of(rng, method, truth):
    """Estimates that come closer; the first few of none."""
    error = QUALITY[method][0]
    if error is None:
        return {"log_evidence": None, "log_evidence_sd": None, "history": {"evaluations": [], "log_evidence": []}}
    evaluations = np.geomspace(100, BUDGET, 60).astype(int)
    scale = error * np.sqrt(BUDGET / evaluations) + 1000.0 * (evaluations < rng.lognormal(np.log(1e4), 0.5))
    values = (truth - scale * abs(rng.standard_normal(60))).tolist()
    history = {"evaluations": evaluations.tolist(), "log_evidence": [None] * 3 + values[3:]}
    return {"log_evidence": values[-1], "log_evidence_sd": error, "history": history}


def mixture_record(rng, method, points):
    centres = CENTRES if method in ("default", "paper") else rng.uniform(0, 20, 1 + rng.integers(6))
    return uncertain_record(rng, method, points) | {
        "predictive": {"y": Y.tolist(), "density": density(centres).tolist()},
    }


def uncertain_record(rng, method, points):
    five = float(np.clip(QUALITY[method][1] + 1e-3 * rng.standard_normal(), 1e-6, 1 - 1e-6))  # the longest to write
    return history_of(rng, method, TRUTHS.gmm.log_evidence) | {
        "probability": {"5": five, "6": 1 - five},
        "discovered": int(rng.integers(100_000, BUDGET)) if method != "is" else None,
        **chains_of(method),
    }


def chains_of(method):
    chains = {"rmh": 250, "rmh_single": 1, "rmh_centred": 250}.get(method, 0)
    return {"least_K": 3, "chains": chains, "chains_that_moved": chains // 10}


def convergence_record(rng, method, points):
    return history_of(rng, method, TRUTHS.induction.log_evidence)


def planar_record(rng, method, points):
    one = [[0.0, 0.2], [[3.2, 1.8], [1.8, 1.8]]]
    two = [[[-1.5, -1.0], [[1.0, 0.5], [0.5, 0.6]]], [[1.5, 1.5], [[0.5, -0.4], [-0.4, 0.8]]]]
    return history_of(rng, method, -247.0) | {"best": [[one], two]}


def misspecified_record(rng, method, points):
    evaluations = np.unique(np.geomspace(1, BUDGET, points).astype(int))
    low = 3 if method != "rmh" else 88
    centre = np.maximum(90 - 12 * np.log(evaluations), low)
    found = method != "rmh"
    return history_of(rng, method, TRUTHS.misspecified.log_evidence) | {
        "probability": {"5": 0.9976 + 1e-4 * rng.standard_normal(), "6": 0.0024} if found else {"91": 1.0},
        "discovered": int(rng.integers(2000, 20000)) if found else None,
        "visits": {"evaluations": evaluations.tolist(), "K": rng.poisson(centre).tolist()},
        **chains_of(method),
    }


def induction_record(rng, method, points):
    lppd = TRUTHS.induction.lppd - QUALITY[method][2] * float(abs(rng.standard_normal()))
    coefficients = np.array([-1.0, 2.0, 5.0]) + 0.01 * QUALITY[method][2] * rng.standard_normal((40, 3))
    values = [(a * X + b * np.sin(c * X**2)).tolist() for a, b, c in coefficients]
    return history_of(rng, method, TRUTHS.induction.log_evidence) | {
        "lppd": lppd,
        "functions": {"x": X.tolist(), "f": values},
        "resources": resources_of(rng) if method in ("default", "paper") else {},
    }


def resources_of(rng):
    """More on the paths that have more of the evidence."""
    exact = sorted(TRUTHS.induction.log_evidence_of.items(), key=lambda item: -item[1])
    return {shape: resource_of(rng, order, value) for order, (shape, value) in enumerate(exact)}


def resource_of(rng, order, log_evidence):
    evaluations = np.geomspace(1000 * (1 + order), BUDGET, 50)
    values = log_evidence - 400 * (evaluations / 1000) ** -rng.uniform(0.8, 1.2) + 0.05 * rng.standard_normal(50)
    spent = 500 + evaluations * 0.3 / (1 + order) ** 2
    return {
        "evaluations": evaluations.astype(int).tolist(),
        "log_evidence": [None, *values[1:].tolist()],
        "spent": spent.astype(int).tolist(),
    }


@pytest.fixture(scope="module")
def records():
    """Through JSON, as they come from files."""
    return json.loads(json.dumps(made_up_records()))


@pytest.fixture(scope="module")
def truths():
    return TRUTHS


@pytest.fixture(scope="module")
def folder(records, truths, tmp_path_factory):
    """All that is made of a whole reproduction."""
    target = tmp_path_factory.mktemp("reproduction")
    figures.draw_all(records, truths, target)
    table.write(table.tables(records, truths), target)
    about = {"python": "3.14", "date": "2026-01-01", "command": "make reproduce <all>"}
    assert page.write(target, records, truths, about) == target / "report.html"
    return target


def of(records, experiment=None, method=None):
    return [
        record
        for record in records
        if experiment in (None, record["experiment"]) and method in (None, record["method"])
    ]


def words_of(figure):
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


# Figures --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # the quick reproduction writes them, too
def test_every_figure_is_written_as_png_and_svg(folder):
    for name in FIGURES:
        assert (folder / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (folder / "figures" / f"{name}.svg").read_text()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", FIGURES)
def test_letters_can_be_read_and_axes_have_labels(records, truths, name):
    figure = FIGURES[name](records, truths)
    assert min(text.get_fontsize() for text in figure.findobj(Text) if text.get_text()) >= 9
    assert any(axes.get_xlabel() for axes in figure.axes)
    assert figure.get_suptitle() or figure.axes[0].get_title()


@pytest.mark.parametrize("method", METHODS)
def test_one_method_alone_is_enough(records, truths, method):
    alone = of(records, method=method)
    drawn = {name for name, draw in FIGURES.items() if draw(alone, truths) is not None}
    estimates = {"evidence"} if QUALITY[method][0] is not None else set()
    estimates |= {"clusters"} if method == "default" else set()
    estimates |= {"convergence"} if method in ("default", "paper") else set()
    clusters = {"visits", "misspecified_probability"} if of(alone, "misspecified") else set()
    paths = {"resources"} if method in ("default", "paper") else set()
    assert drawn == {"predictive", "probability", "distance", "functions", "times"} | estimates | clusters | paths


def test_a_figure_without_data_is_not_made_and_an_old_one_goes(records, truths, tmp_path):
    old = tmp_path / "figures" / "visits.png"
    old.parent.mkdir()
    old.write_bytes(b"")
    figures.draw_all([], truths, tmp_path)
    assert not list(old.parent.iterdir())
    assert all(draw(of(records, "induction", "pg"), truths) is None for n, draw in FIGURES.items() if n[0] in "pevmr")


def test_the_same_records_make_the_same_files(records, truths, tmp_path):
    few = of(records, "misspecified", "rmh")
    for place in ("a", "b"):
        figures.draw_all(few, truths, tmp_path / place)
    for file in (tmp_path / "a" / "figures").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / "figures" / file.name).read_bytes()


def test_errors_of_the_evidence_are_steps_that_start_at_the_first_value(records, truths):
    first, exact = of(records, "gmm", "is")[0], truths.gmm.log_evidence
    runs = [
        first | {"seed": 0, "history": {"evaluations": [10, 100, 1000], "log_evidence": [None, exact + 2, exact]}},
        first | {"seed": 1, "history": {"evaluations": [10, 500, 1000], "log_evidence": [None, exact + 4, exact]}},
        first | {"seed": 2, "history": {"evaluations": [10], "log_evidence": [None]}},
    ]
    figure = figures.evidence(runs, truths)
    evaluations, errors = figure.axes[0].lines[0].get_data()
    assert evaluations[0] == 100
    assert evaluations[-1] == 1000
    np.testing.assert_allclose(errors[evaluations < 500], 4.0)
    np.testing.assert_allclose(errors[(evaluations > 500) & (evaluations < 1000)], 10.0)  # between 4 and 16
    assert errors[-1] == 1e-12  # an error of zero
    assert any("2 of 3 runs have a value" in words for words in words_of(figure))
    assert figures.evidence(runs[2:], truths) is None


def test_functions_are_of_the_run_with_the_highest_lppd(records, truths):
    words = words_of(figures.functions(records, truths))
    for method, name in METHODS.items():
        best = max(of(records, "induction", method), key=lambda run: run["lppd"])
        assert f"{name.label}\nrun {best['seed']}: LPPD {best['lppd']:.2f} nats" in words


def test_paths_go_by_their_exact_weights(records, truths):
    [run] = of(records, "induction", "default")[:1]
    lightest_first = dict(sorted(run["resources"].items(), key=lambda item: truths.induction.weights[item[0]]))
    figure = figures.resources([run | {"resources": lightest_first}], truths)
    heaviest = figure.axes[0].get_legend_handles_labels()[1]
    assert set(heaviest[:2]) == {"x + sin(x²)", "sin(x²) + x"}
    assert set(heaviest[2:4]) == {"sin(x) + sin(x²)", "sin(x²) + sin(x)"}
    assert heaviest[8:] == ["other paths", "exact, in the colour of the path"]


# Tables ---------------------------------------------------------------------------------------------------------------


def test_numbers_of_function_induction_by_hand(records, truths):
    first = of(records, "induction", "paper")[0]
    values = [(-29.0, -44.0, 20, 10.0), (-31.0, None, 26, 30.0), (-27.5, -43.0, 23, 20.0), (-28.5, None, 23, 50.0)]
    runs = [
        first | {"seed": seed, "lppd": lppd, "log_evidence": z, "paths": paths, "seconds": seconds}
        for seed, (lppd, z, paths, seconds) in enumerate(values)
    ]
    row = table.tables(runs, truths)["induction"].iloc[0]
    exact = truths.induction.log_evidence
    assert (row["method"], row["runs"], row["log_evidence_runs"]) == ("paper", 4, 2)
    assert row["lppd_mean"] == pytest.approx(-29.0)
    assert row["lppd_sd"] == pytest.approx(np.sqrt((0.0 + 2.0**2 + 1.5**2 + 0.5**2) / 3))
    assert row["lppd_farthest"] == pytest.approx(31.0 + truths.induction.lppd)
    assert row["log_evidence_squared_error"] == pytest.approx(((-44 - exact) ** 2 + (-43 - exact) ** 2) / 2)
    assert (row["paths_min"], row["paths_max"], row["seconds_median"]) == (20, 26, 25.0)


def test_numbers_of_the_mixture_by_hand(records, truths):
    first = of(records, "gmm", "default")[0]
    wrong = {"y": Y.tolist(), "density": density(np.array([1.0])).tolist()}
    values = [(0.9, 3000, first["predictive"]), (0.5, 1000, wrong), (0.0, None, wrong)]
    runs = [
        first
        | {
            "seed": seed,
            "probability": {"5": p, "6": 1 - p} if p else {"7": 1.0},
            "discovered": found,
            "predictive": new,
        }
        for seed, (p, found, new) in enumerate(values)
    ]
    frame = table.tables(runs, truths)["gmm"]
    row = frame.iloc[0]
    exact = truths.gmm.probability[5]
    assert (row["probability_median"], row["probability_min"], row["probability_exact"]) == (0.5, 0.0, exact)
    assert (row["discovered_runs"], row["discovered_median"]) == (2, 2000.0)
    assert (row["discovered_min"], row["discovered_max"]) == (1000, 3000)
    assert row["predictive_distance"] == pytest.approx(1.0, abs=1e-3)
    header, [cells] = table.cells(frame, ["method", "probability", "discovered", "found"])
    assert header[1] == f"p(K = 5), median (min); exact: {probability_text(exact)}"
    assert cells == ["Anabranch (default)", "0.5000 (0)", "2,000 (1,000 – 3,000)", "2 of 3"]
    # All of the probability is elsewhere in the third run, and half in the second.
    assert row["clusters_distance_median"] == pytest.approx(0.5, abs=1e-9)
    assert row["clusters_distance_max"] == pytest.approx(1.0)


@pytest.mark.parametrize("experiment", ["gmm", "uncertain", "misspecified", "induction"])
def test_one_run_without_an_estimate_of_the_evidence_has_a_row(records, truths, experiment):
    frames = table.tables(of(records, experiment, "rmh")[:1], truths)
    assert list(frames) == [experiment]
    header, [cells] = table.cells(frames[experiment])
    row = dict(zip(header, cells, strict=True))
    assert row["method"] == "RMH, many chains"
    assert row["squared error of log Z (nats²), median"] == "–"
    assert not any("nan" in cell for cell in cells)


def test_tables_are_written_in_full_and_for_people(records, truths, tmp_path):
    table.write(table.tables(records, truths), tmp_path)
    frames = table.tables(records, truths)
    read = pd.read_csv(tmp_path / "table.csv")
    assert len(read) == sum(map(len, frames.values())) == 9 + 9 + 4 + 9
    mine = read[(read["experiment"] == "induction") & (read["method"] == "pg")].iloc[0]
    assert mine["lppd_mean"] == pytest.approx(np.mean([run["lppd"] for run in of(records, "induction", "pg")]))
    markdown = (tmp_path / "table.md").read_text()
    assert markdown.count("## ") == 4
    text = table.text(frames)
    assert max(map(len, text.splitlines())) <= 120
    assert "…" not in text
    for frame in frames.values():
        for row in table.cells(frame)[1]:
            assert f"| {' | '.join(row)} |" in markdown
            assert all(label.label in text for label in METHODS.values())


# Page -----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_has_every_section_the_numbers_and_the_figures(records, truths, folder):
    text = (folder / "report.html").read_text()
    for section in SECTIONS:
        assert f"<h2>{section.title}</h2>" in text
        assert all(f'<img alt="{caption}"' in text for caption in section.figures.values())
    for frame in table.tables(records, truths).values():
        for row in table.cells(frame)[1]:
            assert all(f">{cell.replace('<', '&lt;')}</td>" in text for cell in row)
    assert "−28.560 ± 0.41" in text  # the LPPD of DCC in the paper
    for words in (
        "0.1.0",
        "1,000,000 evaluations",
        "3.14",
        "2026-01-01",
        "make reproduce &lt;all&gt;",
        "DCC(paper=True)",
    ):
        assert words in text
    assert "Gaussian mixture: 4; Gaussian mixture, uncertain number of clusters: 4" in text


@pytest.mark.slow
def test_the_page_needs_nothing_else(folder):
    text = (folder / "report.html").read_text()
    assert "<script" not in text
    assert not re.search(r"(href|src)=\"(?!data:)|url\(|@import", text)


def test_the_page_leaves_out_what_was_not_run(records, truths, tmp_path):
    some = of(records, "induction", "pg") + of(records, "misspecified", "rmh")[:2]
    about = {"command": "make reproduce"}
    text = page.write(tmp_path, some, truths, about).read_text()
    titles = re.findall("<h2>(.*?)</h2>", text)
    assert titles == [
        "Figure 5: misspecified prior",
        "Figure 6 and table 1: function induction",
        "Times",
        "All numbers",
        "Settings",
    ]
    assert "<img" not in text
    assert "<h2>Times" not in page.write(tmp_path, [], truths, about).read_text()
