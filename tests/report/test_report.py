"""How a posterior is shown: text, HTML, picture, ArviZ, and warnings."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import solved
from anabranch import errors, report
from anabranch.combine import Posterior, Solution
from anabranch.combine.evidence import Evidence
from anabranch.report.table import with_error


@pytest.fixture(scope="module")
def division():
    return solved.divided()


@pytest.fixture(scope="module")
def posterior(division):
    return solved.posterior(division, n=1000)


def changed(posterior, **changes):
    """The same posterior with another estimate of its heaviest path."""
    first = posterior.solutions[0]
    other = Solution(first.path, replace(first.estimate, **changes), first.visits)
    return Posterior(posterior.program, [other, *posterior.solutions[1:]], posterior.run)


def test_the_text_has_evidence_paths_and_how_it_ended(posterior):
    text = repr(posterior)
    assert text.startswith(f"Posterior of choice: log evidence {posterior.log_evidence:.2f}"[:-2])
    for solution in posterior.solutions:
        assert solution.path.description in text
    assert "The example ended." in text
    assert "801 evaluations of densities, 100 executions, 0.5 s, seed 0." in text
    found = Posterior(posterior.program, posterior.solutions, solved.run(prior_mass_found=0.99))
    assert "seed 0; 99 % of the prior mass found." in " ".join(repr(found).split())
    assert "exact" in text
    assert "Warnings" not in text


def test_more_paths_than_fit_are_summed_up(posterior):
    many = [*posterior.solutions * 5, Solution(posterior.solutions[0].path, None)]
    text = repr(Posterior(posterior.program, many, solved.run()))
    assert "and 6 more paths, with a total weight of " in text
    assert "; 1 of them without an estimate" in text


def test_html_is_escaped(posterior):
    html = posterior._repr_html_()
    assert html.count("<tr>") == 4
    assert "Posterior of choice" in html
    noted = Posterior(posterior.program, posterior.solutions, solved.run(notes=("x < 1 & more",)))
    assert "x &lt; 1 &amp; more" in noted._repr_html_()


@pytest.fixture(scope="module")
def without_evidence(posterior):
    weights = Evidence(None, None, posterior.evidence.weights, posterior.evidence.weight_sds)
    heaviest = posterior.solutions[0]
    by_chains = replace(heaviest, estimate=replace(heaviest.estimate, method="Chains"))
    return Posterior(posterior.program, [by_chains, *posterior.solutions[1:]], posterior.run, weights)


def test_what_has_no_evidence_says_by_which_method(posterior, without_evidence):
    title, _, header, row, *_ = repr(without_evidence).splitlines()
    assert title == "Posterior of choice: log evidence not given by Chains"
    assert header.split()[2:4] == ["log", "evidence"]
    description = posterior.solutions[0].path.description
    weight = with_error(posterior.evidence.weights[0], posterior.evidence.weight_sds[0])
    assert row.split() == [*description.split(), *weight.split(), "-", *row.split()[-4:]]
    assert "log evidence not given by Chains" in without_evidence._repr_html_()
    empty = Evidence(None, None, np.zeros(0), np.zeros(0))
    assert repr(Posterior(posterior.program, [], posterior.run, empty)).splitlines()[0].endswith("not given")


def test_the_plot_leaves_out_evidence_that_there_is_not(without_evidence, tmp_path):
    figure = without_evidence.plot(path="model = 2", file=tmp_path / "posterior.png")
    labels = [axes.get_xlabel() for axes in figure.get_axes()]
    assert labels == ["posterior probability", "share of evaluations (bars)", "mu", "shift"]
    assert figure.subfigs[0].get_suptitle() == "choice: log evidence not given by Chains"
    np.testing.assert_allclose(
        [bar.get_width() for bar in figure.get_axes()[0].patches], without_evidence.evidence.weights
    )


def test_the_remedy_for_draws_of_the_whole_program_is_another_engine(posterior):
    assert "choose another strategy for it" in changed(posterior, pareto_k=0.9).warnings[0]
    every = [replace(s, estimate=replace(s.estimate, pareto_k=0.9, blocks=np.arange(len(s.points))))
             for s in posterior.solutions]  # fmt: skip
    assert "choose another engine" in Posterior(posterior.program, every, posterior.run).warnings[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ess": 12.0}, "effective sample size is 12.0"),
        ({"pareto_k": 0.83}, "Pareto k of its weights is 0.83"),
        ({"r_hat": 1.2}, "R-hat is 1.200"),
        ({"remarks": ("Seen twice.",)}, "Seen twice."),
    ],
)
def test_warnings_name_the_path_and_what_is_wrong(posterior, changes, words):
    assert posterior.warnings == []
    (warning,) = changed(posterior, **changes).warnings
    assert warning.startswith(f"Path ({posterior.solutions[0].path.description}), weight ")
    assert words in warning
    assert f"Warnings: - {warning}" in " ".join(repr(changed(posterior, **changes)).split())


def test_a_light_path_is_not_worth_a_warning(posterior):
    light = changed(posterior, log_evidence=posterior.log_evidence - 20, ess=3.0)
    assert light.warnings == []


def test_warnings_about_the_whole_program(posterior):
    unsolved = [posterior.solutions[0], *(Solution(s.path, None) for s in posterior.solutions[1:])]
    run = solved.run(prior_mass_found=0.9, prior_mass_truncated=0.02)
    evidence, budget, unexplored = Posterior(posterior.program, unsolved, run).warnings
    assert "log evidence has an error of" in evidence
    assert "2 paths were found and never visited, with " in budget
    assert "10 % of the prior mass is on paths that were not found, 2 % beyond max_sites" in unexplored


def test_many_warnings_are_cut_in_the_text(posterior):
    noisy = changed(posterior, remarks=tuple(f"Remark {i}." for i in range(8)))
    assert "and 3 more, in posterior.warnings" in repr(noisy)


def test_the_plot_is_a_picture_of_paths_and_marginals(posterior, tmp_path):
    figure = posterior.plot(path="model = 2", file=tmp_path / "posterior.png")
    assert (tmp_path / "posterior.png").read_bytes().startswith(b"\x89PNG")
    labels = [axes.get_xlabel() for axes in figure.get_axes()]
    assert labels == [
        "posterior probability", "log evidence (dots)", "share of evaluations (bars)", "mu", "shift",
    ]  # fmt: skip
    widths = [bar.get_width() for bar in figure.get_axes()[0].patches]
    np.testing.assert_allclose(widths, posterior.evidence.weights)


def test_a_path_without_continuous_sites_has_no_marginals(posterior):
    labels = [axes.get_xlabel() for axes in posterior.plot(path="model = 0").get_axes()]
    assert len(labels) == 3
    with pytest.raises(errors.UnknownName, match=r"'model = 7'.*The heaviest: 'model"):
        posterior.plot(path="model = 7")


@pytest.fixture(scope="module")
def imported():
    """The modules that there are once the library is imported."""
    code = "import sys, anabranch; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_importing_the_library_imports_nothing_slow(imported):
    assert "anabranch" in imported
    slow = {"pandas", "matplotlib", "arviz", "rich", "xarray", "blackjax", "ray", "zarr"}
    assert not imported & (slow | {f"scipy.{name}" for name in ("stats", "optimize", "spatial", "interpolate")})


def test_the_posterior_and_the_report_do_not_import_each_other(imported):
    """The display needs solutions and evidence, never the posterior; the posterior needs the display when printed."""
    assert not imported & {f"anabranch.report.{name}" for name in ("summary", "plots", "arviz")}
    for file in Path(report.__file__).parent.rglob("*.py"):
        assert "posterior import" not in file.read_text(encoding="utf-8")
