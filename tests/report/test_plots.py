"""Every picture shows the numbers of the posterior, in axes that are given or new, and says what it cannot draw."""

import ast
from pathlib import Path

import numpy as np
import numpyro.distributions as dist
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import anabranch as ab
import solved
import wide
from anabranch import errors
from anabranch.combine import Posterior, Solution
from anabranch.combine.evidence import Evidence
from anabranch.combine.history import History
from anabranch.conquer.estimate import Estimate
from anabranch.report import plots
from anabranch.report.plots.canvas import OF_PATHS

PICTURES = {
    "tree": lambda plot, **given: plot.tree(**given),
    "weights": lambda plot, **given: plot.weights(**given),
    "history": lambda plot, **given: plot.history(**given),
    "resources": lambda plot, **given: plot.resources(**given),
    "marginal": lambda plot, **given: plot.marginal("mu", **given),
    "predictive": lambda plot, **given: plot.predictive("y", **given),
    "pairs": lambda plot, **given: plot.pairs("model = 2", **given),
    "decisions": lambda plot, **given: plot.decisions(**given),
}


def history():
    made = History()
    for evaluations, log_evidence in [(10, -400.0), (200, -6.0), (400, -5.7), (801, -5.78)]:
        made.add(evaluations, log_evidence)
    return made


@pytest.fixture(scope="module")
def posterior():
    made = solved.posterior(solved.divided(), n=1000)
    return Posterior(made.program, made.solutions, solved.run(history=history()))


@pytest.fixture(scope="module")
def many():
    return wide.perturbed(wide.posterior(), 0.1, np.random.default_rng(0))


def words(axes):
    return [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_drawn_into_new_axes_or_into_those_given(posterior, name, tmp_path):
    draw = PICTURES[name]
    new = draw(posterior.plot)
    assert new.figure.get_size_inches().tolist() == [6.0, 4.0]
    assert new._repr_png_().startswith(b"\x89PNG")  # what a notebook asks for
    file = tmp_path / "picture.png"
    assert draw(posterior.plot, file=file).get_title() == new.get_title()
    assert file.read_bytes().startswith(b"\x89PNG")
    figure = Figure()
    given = figure.add_subplot()
    assert draw(posterior.plot, ax=given) is given
    assert figure.axes == [given] or name == "pairs"
    if name != "pairs":
        assert given.get_xlabel()


def test_the_overview_can_be_called_as_before(posterior, tmp_path):
    figure = posterior.plot(path="model = 2", file=tmp_path / "overview.png")
    assert (tmp_path / "overview.png").read_bytes().startswith(b"\x89PNG")
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_no_picture_imports_pyplot():
    """It would choose a backend, keep figures alive, and draw them twice in a notebook."""
    files = list(Path(plots.__file__).parent.glob("*.py"))
    assert len(files) > 8
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            assert not any("pyplot" in name for name in [*names, getattr(node, "module", None) or ""])


def test_the_tree_has_the_weights_of_the_paths(posterior):
    axes = posterior.plot.tree()
    shown = words(axes)
    assert shown[::2] == [solution.path.description for solution in posterior.solutions]
    np.testing.assert_allclose([float(text) for text in shown[1::2]], posterior.evidence.weights, atol=6e-4)
    widths = np.array([bar.get_width() for bar in axes.patches])
    np.testing.assert_allclose(widths / widths.sum(), posterior.evidence.weights, rtol=1e-9)


def test_families_are_one_line_of_the_tree(many):
    assert words(many.plot.tree())[0] == f"z0 … z6: any subset; {len(many.solutions)} of 128 paths found"


def test_lines_of_the_tree_without_mass_are_summed_up():
    def program():
        if ab.sample("a", dist.Bernoulli(0.5)):
            ab.sample("k", dist.Categorical(np.ones(3) / 3)) == 1  # noqa: B015
        ab.observe("y", dist.Normal(0.0, 1.0), 0.0)

    division = ab.find_paths(program, split=["k"], executions=100)
    logs = {"a = 0": 0.0, "a = 1, k = 0": -1.0, "a = 1, k = 1": -40.0, "a = 1, k = 2": -50.0}
    solutions = [
        Solution(path, Estimate.from_draws(np.zeros((1, 0)), np.zeros(1), logs[path.description], 0.0, 1, "exact"))
        for path in division
    ]
    shown = words(Posterior(division.program, solutions, solved.run()).plot.tree())
    assert shown[::2] == ["a = 0", "a = 1", "k = 0", "2 more"]
    assert shown[-1] == "3e-18"


def test_bars_of_weights(posterior, many):
    axes = posterior.plot.weights()
    np.testing.assert_allclose([bar.get_width() for bar in axes.patches], posterior.evidence.weights)
    labels = [label.get_text() for label in many.plot.weights(limit=8).get_yticklabels()]
    assert len(labels) == len(set(labels)) == 8


def test_the_history_ends_at_the_evidence(posterior):
    axes = posterior.plot.history()
    [steps] = [line for line in axes.lines if len(line.get_xdata()) == 4]
    np.testing.assert_array_equal(steps.get_xdata(), [10, 200, 400, 801])
    low, high = axes.get_ylim()
    assert -7 < low < posterior.log_evidence < high < -5  # the first estimate, -400, is outside, and that is said
    assert axes.get_title(loc="left") == "the first visits are outside"


def test_a_run_without_history_says_so(posterior):
    weights = Evidence(None, None, posterior.evidence.weights, posterior.evidence.weight_sds)
    for each in (
        Posterior(posterior.program, posterior.solutions, solved.run()),
        Posterior(posterior.program, posterior.solutions, solved.run(history=history()), weights),
    ):
        with pytest.raises(errors.NoDraws, match="no history of its evidence"):
            each.plot.history()


def test_resources_are_the_evaluations_of_each_path(posterior):
    axes = posterior.plot.resources()
    dots = np.concatenate([each.get_offsets() for each in axes.collections if len(each.get_offsets())])
    expected = [
        (w, s.estimate.evaluations) for w, s in zip(posterior.evidence.weights, posterior.solutions, strict=True)
    ]
    np.testing.assert_allclose(sorted(map(tuple, dots)), sorted(expected))


def test_the_area_of_a_marginal_is_the_probability_of_having_it(posterior):
    """mu is there under two of three models; each has its colour, and its share of the area."""
    axes = posterior.plot.marginal("mu", n=4000)
    weights = dict(zip([s.path.description for s in posterior.solutions], posterior.evidence.weights, strict=True))
    areas = {}
    for patch in axes.patches:
        colour = to_hex(patch.get_facecolor()).upper()
        areas[colour] = areas.get(colour, 0.0) + patch.get_width() * patch.get_height()
    assert areas[OF_PATHS[0]] == pytest.approx(weights["model = 1"], abs=0.01)
    assert areas[OF_PATHS[1]] == pytest.approx(weights["model = 2"], abs=0.01)
    assert "of the posterior mass, on paths with mu" in axes.get_title(loc="left")


def test_the_marginal_of_a_discrete_variable_has_its_probabilities(many):
    axes = many.plot.marginal("count", n=20_000)
    heights = {}
    for patch in axes.patches:
        value = round(patch.get_x() + patch.get_width() / 2)
        heights[value] = heights.get(value, 0.0) + patch.get_height()
    for value, probability in many.probability("count").items():
        assert heights.get(value, 0.0) == pytest.approx(probability, abs=0.003)
    assert axes.get_legend().get_texts()[-1].get_text().endswith("other paths")


def test_marginals_that_cannot_be_drawn(posterior):
    with pytest.raises(errors.UnknownName, match=r"none of the draws has 'nu'.*There are: mean, model, mu"):
        posterior.plot.marginal("nu")

    def vector(y):
        ab.observe("y", dist.Normal(ab.sample("x", dist.Normal(np.zeros(3), 1.0)), 1.0), y)

    made = ab.infer(vector, np.zeros(3), budget=2000)
    with pytest.raises(errors.UnknownName, match=r"'x' is no single number: x has the shape \(3,\).*as in x\[0\]"):
        made.plot.marginal("x")
    assert made.plot.marginal("x[1]").get_xlabel() == "x[1]"


def test_bands_of_replicated_data(posterior):
    """Each datum is normal around the mean: 95 % of the replicates are within two standard deviations, more or less."""
    axes = posterior.plot.predictive(n=4000)
    [data] = axes.lines
    np.testing.assert_array_equal(data.get_ydata(), solved.Y)
    low, high = axes.collections[0].get_segments()[0][:, 1]
    replicates = posterior.replicate(4000)["y"][:, 0]
    np.testing.assert_allclose([low, high], np.quantile(replicates, [0.025, 0.975]), atol=0.15)
    assert posterior.plot.predictive("y", x=[3.0, 1.0, 2.0, 0.0]).get_xlabel() == "x"
    with pytest.raises(errors.BadSetting, match="one number for each of the 4 data of y; got 2"):
        posterior.plot.predictive(x=[1.0, 2.0])
    with pytest.raises(errors.UnknownName, match=r"observes no data 'w'.*There are: y"):
        posterior.plot.predictive("w")


def test_data_of_other_shapes_on_other_paths_are_not_drawn_together():
    def program():
        n = ab.sample("n", dist.DiscreteUniform(1, 2))
        ab.observe("y", dist.Normal(0.0, 1.0), np.zeros(int(n)))

    made = ab.infer(program, budget=500)
    with pytest.raises(errors.BadSetting, match="another shape on other paths"):
        made.plot.predictive()


def test_pairs_of_one_path(posterior):
    axes = posterior.plot.pairs("model = 2")
    assert len(axes.child_axes) == 3
    drawn = axes.child_axes[1].lines[0].get_xydata()
    mean, covariance = solved.posterior_normal(posterior.solution("model = 2").path)
    np.testing.assert_allclose(drawn.mean(0), mean, atol=5 * np.sqrt(covariance.max() / 400))
    assert len(posterior.plot.pairs("model = 2", names=["shift"]).child_axes) == 1
    with pytest.raises(errors.UnknownName, match=r"model = 2\) has no continuous variable 'nu'.*It has: mu, shift"):
        posterior.plot.pairs("model = 2", names=["nu"])
    with pytest.raises(errors.UnknownName, match=r"model = 0\) has no continuous variable.*another path"):
        posterior.plot.pairs("model = 0")


def test_dots_of_decisions(many):
    axes = many.plot.decisions()
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[:7] == [f"z{i} = 1" for i in range(7)]
    dots = axes.containers[0].lines[0]
    expected = [many.probability(f"z{i}")[1] for i in range(7)]
    np.testing.assert_allclose(dots.get_xdata()[:7], expected)

    def one():
        ab.observe("y", dist.Normal(ab.sample("x", dist.Normal(0.0, 1.0)), 1.0), 0.0)

    without = ab.infer(one, budget=2000)
    assert list(without.decisions.columns) == ["name", "value", "probability", "probability_sd"]
    with pytest.raises(errors.UnknownName, match="different values on different paths"):
        without.plot.decisions()
