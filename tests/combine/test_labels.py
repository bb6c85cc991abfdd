"""Text under a name: its probabilities, draws, exports and files, from recorded and from interpreted programs."""

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr
from scipy.stats import norm

import anabranch as ab
from anabranch.errors import NotANumber, NotDiscrete

SHIFTS = np.array([0.0, 1.0, 3.0])
Y = 2.0


def curve(y, is_interpreted=False):
    k = int(ab.sample("k", dist.Categorical(np.array([0.2, 0.3, 0.5]))))
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    ab.deterministic("formula", ["x", "x+1", "x+3"][k])
    ab.deterministic("side", ("above" if (float(x) if is_interpreted else x) > 0 else "below", k))
    ab.deterministic("remark", None)
    ab.deterministic("extra", "shifted") if k else None
    ab.observe("y", dist.Normal(x + SHIFTS[k], 1.0), y)


def truth():
    """P(k | y), and P(x > 0 | k, y): x given y is normal with the mean (y - shift)/2 and the variance 1/2."""
    weights = np.array([0.2, 0.3, 0.5]) * norm.pdf(Y, SHIFTS, np.sqrt(2))
    return weights / weights.sum(), norm.cdf((Y - SHIFTS) / 2 / np.sqrt(0.5))


@pytest.fixture(scope="module", params=[False, True], ids=["recorded", "interpreted"])
def posterior(request):
    return ab.infer(curve, Y, is_interpreted=request.param, budget=1_200 if request.param else 60_000)


@pytest.fixture(scope="module")
def recorded():
    return ab.infer(curve, Y, budget=60_000)


def agrees(found, value, exact, most):
    assert abs(found[value] - exact) < 4 * found.errors[value] < most


def test_the_probability_of_each_text(posterior):
    weights, above = truth()
    formulas, sides = posterior.probability("formula"), posterior.probability("side")
    most = 0.2 if posterior.solutions[0].path.interpreted else 0.05
    for k, text in enumerate(["x", "x+1", "x+3"]):
        agrees(formulas, text, weights[k], most)
        agrees(sides, ("above", k), weights[k] * above[k], most)
        agrees(sides, ("below", k), weights[k] * (1 - above[k]), most)
    assert sum(formulas.values()) == pytest.approx(1.0)
    assert posterior.probability("remark") == {None: pytest.approx(1.0)}
    assert posterior.probability("remark").errors[None] < 1e-6  # the same in all decision sequences of a path
    agrees(posterior.probability("extra"), "shifted", 1 - weights[0], most)
    assert set(posterior.probability("extra")) == {"shifted", None}


def test_the_probability_of_a_function(posterior):
    weights, above = truth()
    most = 0.2 if posterior.solutions[0].path.interpreted else 0.06
    found = posterior.probability(lambda draw: (draw["formula"], draw["x"] > 0))
    agrees(found, ("x+1", True), weights[1] * above[1], most)
    agrees(posterior.probability(lambda draw: draw["k"]), 2, weights[2], most)
    agrees(posterior.probability(lambda draw: draw["extra"]), None, weights[0], most)
    with pytest.raises(NotDiscrete, match=r"has [\d,]+ different values: a single one has no probability"):
        posterior.probability(lambda draw: draw["x"])


def test_draws_have_the_text(posterior):
    draws = posterior.draws(50)
    for draw in draws:
        assert draw["formula"] == ["x", "x+1", "x+3"][int(draw["k"])]
        assert draw["side"] == ("above" if draw["x"] > 0 else "below", draw["k"])
        assert draw["remark"] is None
    assert draws["formula"].dtype.kind == "U"
    assert ((draws["formula"] == "x") == draws["extra"].mask).all()
    assert draws["side"][0] == draws[0]["side"]
    assert "formula='x" in repr(draws[0])
    frame = draws.to_dataframe()
    assert (frame.formula == draws["formula"]).all()
    assert frame.side[0] == draws[0]["side"]


def test_text_has_no_mean(recorded):
    with pytest.raises(NotANumber, match=r"the label 'x.*' is no number, .*\. Use posterior\.probability"):
        recorded.expectation("formula")
    mean, _ = recorded.expectation(lambda draw: draw["formula"] == "x+1")
    assert mean == pytest.approx(recorded.probability("formula")["x+1"])
    assert recorded.summary().index.tolist() == ["k", "x"]
    with pytest.raises(IndexError, match="formula is a label, without elements"):
        recorded.probability("formula[0]")


def test_text_labels_the_draws_of_xarray(recorded, tmp_path):
    recorded.to_netcdf(tmp_path / "run.nc", n=40)
    found = xr.load_datatree(tmp_path / "run.nc", engine="h5netcdf")["posterior"].to_dataset()
    assert set(found.data_vars) == {"k", "x"}
    assert found["formula"].dims == ("chain", "draw")
    assert (found["formula"].values == np.array(["x", "x+1", "x+3"])[found["k"].values]).all()


def test_saved_text_is_loaded(posterior, tmp_path):
    posterior.save(tmp_path / "run")
    again = ab.load(tmp_path / "run")
    assert again.probability("side") == posterior.probability("side")
    assert again.probability("formula").errors == posterior.probability("formula").errors
    assert again.decisions.value.tolist() == posterior.decisions.value.tolist()
    assert again.draws(5)[4] == posterior.draws(5)[4]
    assert again.draws(5)["side"] == posterior.draws(5)["side"]
    again.save(tmp_path / "copy")
    assert ab.load(tmp_path / "copy").probability("side") == posterior.probability("side")


def test_predictions_have_the_text(posterior):
    draws = posterior.predictive(n=20)
    assert all(draw["formula"] == ["x", "x+1", "x+3"][int(draw["k"])] for draw in draws)
    assert set(ab.prior(curve, n=50)["formula"]) == {"x", "x+1", "x+3"}


def test_pictures_and_pages_show_text(recorded, tmp_path):
    axes = recorded.plot.marginal("formula")
    assert [tick.get_text() for tick in axes.get_xticklabels()] == list(recorded.probability("formula"))
    shares = [sum(bar.get_height() for bar in axes.patches if round(bar.get_x() + 0.35) == k) for k in range(3)]
    np.testing.assert_allclose(shares, list(recorded.probability("formula").values()), atol=0.02)
    recorded.plot.marginal("side")
    recorded.plot.decisions()
    recorded.report(tmp_path / "page.html")
    assert "formula = x+3" in (tmp_path / "page.html").read_text()


def test_text_is_a_constant_of_a_recorded_path():
    division = ab.find_paths(curve, Y)
    assert {path.constants["formula"] for path in division.paths} == {"x", "x+1", "x+3"}
    assert all("side" not in path.constants and path.constants["remark"] is None for path in division.paths)


def test_text_of_numpyro_and_what_is_no_text():
    def model(value):
        numpyro.deterministic("name", "a")
        returned = ab.deterministic("label", value)
        x = ab.sample("x", dist.Bernoulli(0.5))
        if x:
            ab.observe("y", dist.Normal(0.0, 1.0), 0.0)
        return returned

    posterior = ab.infer(model, ("poly", 3), budget=1_000)
    assert posterior.probability("name") == {"a": 1.0}
    assert posterior.draws(3)[0].result == ("poly", 3)
    assert ab.infer(model, (1, 2), budget=1_000).probability("label") == {(1, 2): 1.0}  # numbers, as an array
    assert ab.infer(model, None, budget=1_000).draws(3)[0].result is None
    with pytest.raises(TypeError, match="deterministic expects a number, an array or text, or a tuple of text and"):
        ab.infer(model, {"a": 1}, budget=1_000)
    with pytest.raises(TypeError, match="was given a tuple"):
        ab.infer(model, ("poly", np.ones(2)), budget=1_000)
