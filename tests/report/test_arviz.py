"""A posterior for ArviZ and xarray: its groups, their numbers, and that ArviZ works with them without a warning."""

import sys
from importlib.util import find_spec

import arviz as az
import jax.numpy as jnp
import matplotlib
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr

import anabranch as ab
import solved
from anabranch import errors
from anabranch.report import arviz as exported

matplotlib.use("agg")


IS_NEW = int(az.__version__.partition(".")[0]) >= 1


@pytest.fixture(scope="module")
def posterior():
    return solved.posterior(solved.divided(), n=2000)


@pytest.fixture(scope="module")
def data(posterior):
    return posterior.to_arviz(n=2000)


def groups_of(data):
    """The names of the groups: of an `InferenceData`, or of a tree, which ArviZ takes from version 1 on."""
    return list(data.children) if IS_NEW else data.groups()


def test_all_groups_have_the_variables_that_the_paths_share(posterior, data):
    assert set(groups_of(data)) == set(exported.GROUPS)
    assert set(data.posterior.data_vars) == {"model", "mean", "twice"}
    assert data.posterior["mean"].shape == (4, 500)
    assert data.log_likelihood["y"].dims == ("chain", "draw", "y_dim_0")
    assert data.posterior_predictive["y"].shape == data.prior_predictive["y"].shape == (4, 500, 4)
    np.testing.assert_array_equal(data.observed_data["y"], solved.Y)
    mean = solved.weights() @ solved.means()
    assert abs(float(data.posterior["mean"].mean()) - mean) < 4 * float(data.posterior["mean"].std()) / np.sqrt(1000)
    model = data.prior["model"].values
    for value, p in enumerate(solved.PRIOR):
        assert abs((model == value).mean() - p) < 4 * np.sqrt(p * (1 - p) / 2000)


def test_attributes_say_where_it_comes_from(posterior, data):
    found = data.posterior.attrs
    assert found["program"] == "choice"
    assert found["inference_library_version"] == ab.__version__
    assert found["log_evidence"] == posterior.log_evidence
    assert found["seed"] == "0"
    assert "R-hat says nothing" in found["sampling"]


def test_one_path_has_all_its_variables(posterior):
    data = posterior.to_arviz(path="model = 2", n=500)
    assert set(data.posterior.data_vars) == {"model", "mu", "shift", "mean", "twice"}
    assert data.posterior["shift"].shape == (4, 125)
    assert data.log_likelihood["y"].shape == (4, 125, 4)
    assert data.posterior.attrs["path"] == "model = 2"
    solution = posterior.solution("model = 2")
    exact = np.linalg.inv(np.diag([1, 0.25]) + 4) @ np.full(2, solved.Y.sum())
    drawn = [float(data.posterior[name].mean()) for name in ("mu", "shift")]
    np.testing.assert_allclose(drawn, exact, atol=4 / np.sqrt(min(solution.estimate.ess, 500)))
    assert abs(float(data.prior["shift"].std()) - 2) < 4 * 2 / np.sqrt(2 * 500)
    assert set(data.prior["model"].values.ravel()) == {2}


# Of ArviZ 0.23 with pandas 3.1 and with matplotlib 3.11.
@pytest.mark.filterwarnings("ignore:The inplace keyword in DataFrame", "ignore:Passing a dict or None as alias_mapping")
def test_arviz_summarises_compares_and_plots_it(posterior, data):
    table = az.summary(data)
    assert table.r_hat.drop("twice").between(0.99, 1.02).all()
    assert abs(table["mean"]["mean"] - solved.weights() @ solved.means()) < 0.1
    loo = az.loo(data)
    ours = ab.compare({"a": posterior, "b": posterior}).table.elpd.iloc[0]
    assert abs((loo.elpd if IS_NEW else loo.elpd_loo) - ours) < 0.1
    other = posterior.to_arviz(path="model = 1", n=1000)
    assert set(az.compare({"all": data, "one": other}).index) == {"all", "one"}
    if IS_NEW:
        assert az.plot_trace(data, var_names=["mean"]) is not None
        assert az.plot_ppc_dist(data, num_samples=20) is not None
        assert az.plot_ppc_dist(data, group="prior_predictive", num_samples=20) is not None
    else:
        assert az.plot_trace(data, var_names=["mean"]).shape == (1, 2)
        assert az.plot_ppc(data, num_pp_samples=20) is not None
        assert az.plot_ppc(data, group="prior", num_pp_samples=20) is not None
    matplotlib.pyplot.close("all")


def test_axes_are_named_by_plates_and_by_the_user():
    def schools(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        with numpyro.plate("school", 3):
            theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
            numpyro.sample("pair", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
            numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)

    posterior = ab.infer(schools, np.array([1.0, 2.0, 3.0]), budget=20_000)
    coords = {"school": ["a", "b", "c"], "side": ["left", "right"]}
    data = posterior.to_arviz(n=40, coords=coords, dims={"pair": ["school", "side"]})
    assert data.posterior["theta"].dims == ("chain", "draw", "school")
    assert data.posterior["theta"].coords["school"].values.tolist() == ["a", "b", "c"]
    assert data.posterior["pair"].dims == ("chain", "draw", "school", "side")
    assert data.observed_data["y"].dims == ("school",)
    assert posterior.to_arviz(n=40).posterior["pair"].dims == ("chain", "draw", "school", "pair_dim_1")
    with pytest.raises(errors.BadSetting, match="coords: 'school' has 3 values; got 1"):
        posterior.to_arviz(n=40, coords={"school": ["a"]})
    with pytest.raises(errors.BadSetting, match="dims: 'mu' has 0 axes"):
        posterior.to_arviz(n=40, dims={"mu": ["school"]})


def test_groups_can_be_chosen_and_are_left_out_where_there_is_nothing(posterior):
    assert groups_of(posterior.to_arviz(n=20, groups=["posterior"])) == ["posterior"]
    with pytest.raises(errors.BadSetting, match="groups must be some of posterior"):
        posterior.to_arviz(groups=["posteriors"])

    def improper():
        mu = ab.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
        ab.factor("data", -((mu - 1) ** 2))

    assert groups_of(ab.infer(improper, budget=20_000).to_arviz(n=20)) == ["posterior"]


def test_a_tree_has_a_node_for_each_path_and_is_written_and_read(posterior, tmp_path):
    tree = posterior.to_xarray(n=40, chains=2)
    assert tree["posterior"]["mean"].shape == (2, 20)
    heaviest = posterior.paths.path[0]
    assert tree["paths/0/posterior"].attrs["path"] == heaviest
    assert tree["paths/0/posterior"].attrs["path_weight"] == posterior.paths.weight[0]
    assert sorted(tree["paths"].children) == ["0", "1", "2"]
    posterior.to_netcdf(tmp_path / "posterior.nc", n=40, chains=2)
    with xr.open_datatree(tmp_path / "posterior.nc") as again:
        xr.testing.assert_equal(again["paths/0/posterior"].dataset.load(), tree["paths/0/posterior"].dataset)
        assert again["posterior"].attrs["log_evidence"] == posterior.log_evidence
    assert posterior.to_dataframe(n=30).shape[0] == 30


@pytest.mark.skipif(find_spec("zarr") is not None, reason="zarr is installed")
def test_without_zarr_the_error_names_it(posterior, tmp_path):
    with pytest.raises(ImportError, match="to_zarr needs the package zarr"):
        posterior.to_zarr(tmp_path / "posterior.zarr")


# What Zarr says of its own format 3.
@pytest.mark.filterwarnings(
    "ignore:Consolidated metadata is currently not part", "ignore:The data type .* does not have"
)
@pytest.mark.skipif(find_spec("zarr") is None, reason="zarr is not installed")
def test_a_tree_is_written_to_zarr_and_read(posterior, tmp_path):
    posterior.to_zarr(tmp_path / "posterior.zarr", n=40, chains=2)
    again, tree = xr.open_datatree(tmp_path / "posterior.zarr", engine="zarr"), posterior.to_xarray(n=40, chains=2)
    xr.testing.assert_equal(again["paths/0/posterior"].dataset.load(), tree["paths/0/posterior"].dataset)
    assert again["posterior"].attrs["log_evidence"] == posterior.log_evidence


def test_later_versions_of_arviz_get_a_tree(posterior, monkeypatch):
    monkeypatch.setattr(sys.modules["arviz"], "__version__", "1.0.0")
    data = posterior.to_arviz(n=20, groups=["posterior", "observed_data"])
    assert isinstance(data, xr.DataTree)
    assert set(data.children) == {"posterior", "observed_data"}
