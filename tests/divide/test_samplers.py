"""Host draws have the shape, type and law of the NumPyro distribution that they stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints, transforms
from numpyro.distributions.conjugate import NegativeBinomial  # not in `distributions` before NumPyro 0.22
from scipy import stats

from anabranch.divide import samplers
from anabranch.divide.samplers import draw

pytestmark = pytest.mark.one_in(10)

N = 20_000


def shared(distribution):
    """The distribution with the same parameters for all executions."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[None], distribution)


def stacked(distributions):
    """One distribution with the parameters of each of several as rows."""
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *distributions)


def generator(seed=20260101):
    return np.random.default_rng(seed)


@pytest.fixture
def host_only(monkeypatch):
    """Fails a test that draws anything with JAX."""

    def fail(d, *args):
        raise AssertionError(f"{type(d).__name__} was drawn by JAX")

    monkeypatch.setattr(samplers, "_sample_with_jax", fail)
    samplers._sampler.cache_clear()
    yield
    samplers._sampler.cache_clear()


V = np.array
TRIL = np.array([[1.0, 0.0], [-0.5, 0.8]])
P3 = np.array([[0.2, 0.0, 0.8], [0.3, 0.6, 0.1]])
OLD_NUMPYRO = tuple(map(int, numpyro.__version__.split(".")[:2])) < (0, 22)
LOWEST_RATE = 1e-9 if OLD_NUMPYRO else 0.0  # the old one refuses zero
LOC, SCALE = np.array([-1.0, 2.0]), np.array([[0.5], [2.0], [1.0]])

# Name, constructor, scalar arguments, batched arguments. Parameters are such that the fourth moments exist.
CONTINUOUS = [
    ("Normal", dist.Normal, (1.0, 2.0), (LOC, SCALE)),
    ("NormalMixed", dist.Normal, (1, 2), (0.5, SCALE)),
    ("Uniform", dist.Uniform, (-1.0, 2.0), (LOC, LOC + SCALE)),
    ("LogNormal", dist.LogNormal, (1.0, 0.3), (LOC, 0.2 * SCALE)),
    ("LogUniform", dist.LogUniform, (1.0, 3.0), (V([1.0, 2.0]), V([3.0, 9.0]))),
    ("HalfNormal", dist.HalfNormal, (2.0,), (SCALE,)),
    ("Cauchy", dist.Cauchy, (1.0, 2.0), (LOC, SCALE)),
    ("HalfCauchy", dist.HalfCauchy, (2.0,), (SCALE,)),
    ("StudentT", dist.StudentT, (12.0, 1.0, 2.0), (V([12.0, 30.0]), LOC, SCALE)),
    ("Laplace", dist.Laplace, (1.0, 2.0), (LOC, SCALE)),
    ("Logistic", dist.Logistic, (1.0, 2.0), (LOC, SCALE)),
    ("Gumbel", dist.Gumbel, (1.0, 2.0), (LOC, SCALE)),
    ("Exponential", dist.Exponential, (2.0,), (SCALE,)),
    ("Gamma", dist.Gamma, (0.7, 2.0), (V([0.3, 4.0]), SCALE)),
    ("Chi2", dist.Chi2, (3.0,), (SCALE + 1,)),
    ("InverseGamma", dist.InverseGamma, (12.0, 2.0), (V([10.0, 15.0]), SCALE)),
    ("Beta", dist.Beta, (0.7, 2.0), (V([0.3, 4.0]), SCALE)),
    ("BetaProportion", dist.BetaProportion, (0.3, 5.0), (V([0.3, 0.8]), V([4.0, 6.0]))),
    ("Kumaraswamy", dist.Kumaraswamy, (0.7, 2.0), (V([0.3, 4.0]), SCALE)),
    ("Weibull", dist.Weibull, (2.0, 1.5), (SCALE, V([0.8, 3.0]))),
    ("Pareto", dist.Pareto, (2.0, 12.0), (SCALE, V([10.0, 15.0]))),
    ("LeftNormal", lambda m, s, a: dist.TruncatedNormal(m, s, low=a), (1.0, 2.0, 2.0), (LOC, SCALE, 1.0)),
    ("RightNormal", lambda m, s, b: dist.TruncatedNormal(m, s, high=b), (1.0, 2.0, 2.0), (LOC, SCALE, 0.0)),
    ("TwoSidedNormal", lambda m, s, a, b: dist.TruncatedNormal(m, s, low=a, high=b),
     (1.0, 2.0, -1.0, 2.0), (LOC, SCALE, V([0.0, -1.0]), V([0.5, 3.0]))),
    ("LeftCauchy", lambda m, s, a: dist.TruncatedCauchy(m, s, low=a), (1.0, 2.0, 2.0), (LOC, SCALE, 1.0)),
    ("RightCauchy", lambda m, s, b: dist.TruncatedCauchy(m, s, high=b), (1.0, 2.0, 2.0), (LOC, SCALE, 0.0)),
    ("TwoSidedCauchy", lambda m, s, a, b: dist.TruncatedCauchy(m, s, low=a, high=b),
     (1.0, 2.0, -1.0, 2.0), (LOC, SCALE, V([0.0, -1.0]), V([0.5, 3.0]))),
    ("LeftLogistic", lambda m, s, a: dist.TruncatedDistribution(dist.Logistic(m, s), low=a),
     (1.0, 2.0, 2.0), (LOC, SCALE, 1.0)),
    ("VonMises", dist.VonMises, (3.0, 2.0), (V([-1.0, 2.0]), V([[0.5], [20.0], [1e-9]]))),
    ("Dirichlet", dist.Dirichlet, (V([0.5, 2.0, 4.0]),), (V([[0.5, 2.0, 4.0], [1.0, 0.1, 3.0]]),)),
    ("MultivariateNormal", lambda m, s: dist.MultivariateNormal(m, scale_tril=s),
     (V([1.0, 2.0]), TRIL), (V([[[1.0, 2.0]], [[0.0, 3.0]]]), np.stack([TRIL, 2 * TRIL, np.eye(2)]))),
    ("MultivariateNormalCovariance", dist.MultivariateNormal,
     (1.0, TRIL @ TRIL.T), (V([[1.0, 2.0]] * 2), TRIL @ TRIL.T)),
    ("MixtureSameFamily", lambda p, m, s: dist.MixtureSameFamily(dist.Categorical(p), dist.Normal(m, s)),
     (V([0.3, 0.7]), V([-1.0, 2.0]), 0.5), (V([[0.3, 0.7], [0.9, 0.1]]), V([-1.0, 2.0]), SCALE[..., None])),
    ("MixtureVectors",
     lambda p, m: dist.MixtureSameFamily(dist.Categorical(p), dist.MultivariateNormal(m, scale_tril=TRIL)),
     (V([0.3, 0.7]), V([[0.0, 1.0], [4.0, -3.0]])), (V([[0.3, 0.7], [0.9, 0.1]]), V([[0.0, 1.0], [4.0, -3.0]]))),
    ("MixtureGeneral",
     lambda p, m, s: dist.MixtureGeneral(dist.Categorical(p), [dist.Normal(m, s), dist.Cauchy(s, 1.0)]),
     (V([0.3, 0.7]), 1.0, 0.5), (V([[0.3, 0.7], [0.9, 0.1]]), V([-1.0, 2.0]), SCALE)),
    ("Affine", lambda m, s: dist.TransformedDistribution(dist.Gumbel(0.0, 1.0), transforms.AffineTransform(m, s)),
     (1.0, 2.0), (LOC, SCALE)),
    ("SigmoidOfAffine", lambda m, s: dist.TransformedDistribution(
        dist.Normal(0.0, 1.0), [transforms.AffineTransform(m, s), transforms.SigmoidTransform()]),
     (1.0, 0.5), (LOC, SCALE)),
    ("LogNormalPower", lambda m, k: dist.TransformedDistribution(dist.LogNormal(m, 0.1), transforms.PowerTransform(k)),
     (1.0, 2.0), (LOC, V([-1.0, 3.0]))),
]  # fmt: skip
DISCRETE = [
    ("BernoulliProbs", dist.Bernoulli, (0.3,), (V([0.0, 0.3, 1.0]),)),
    ("BernoulliLogits", lambda x: dist.Bernoulli(logits=x), (0.3,), (V([-3.0, 0.3, 2.0]),)),
    ("BinomialProbs", dist.Binomial, (7, 0.3), (V([7, 3]), V([[0.1], [0.5], [0.9]]))),
    ("BinomialLogits", lambda n, x: dist.Binomial(n, logits=x), (7, 0.3), (V([7, 3]), V([[0.1], [-2], [1.5]]))),
    ("BetaBinomial", dist.BetaBinomial, (0.7, 2.0, 6), (V([0.3, 4.0]), SCALE, 6)),
    ("CategoricalProbs", dist.Categorical, (P3[0],), (P3,)),
    ("CategoricalLogits", lambda x: dist.Categorical(logits=x), (V([0.3, -1.0, 2.0]),), (np.log(P3 + 0.1),)),
    ("OrderedLogistic", dist.OrderedLogistic, (0.3, V([-1.0, 1.0])), (V([0.3, 2.0]), V([-1.0, 1.0]))),
    ("DiscreteUniform", dist.DiscreteUniform, (-2, 3), (V([-2, 4]), V([3, 4]))),
    ("GeometricProbs", dist.Geometric, (0.3,), (V([0.2, 0.95]),)),
    ("GeometricLogits", lambda x: dist.Geometric(logits=x), (-1.0,), (V([-1.5, 2.0]),)),
    ("Poisson", dist.Poisson, (3.0,), (V([LOWEST_RATE, 3.0, 40.0]),)),
    ("GammaPoisson", dist.GammaPoisson, (2.0, 0.5), (V([0.5, 4.0]), SCALE)),
    ("NegativeBinomialProbs", NegativeBinomial, (2.5, 0.4), (V([0.5, 4.0]), V([[0.2], [0.7]]))),
    ("NegativeBinomialLogits", lambda n, x: NegativeBinomial(n, logits=x), (2.5, 0.4), (V([0.5, 4.0]), 0.2)),
    ("NegativeBinomial2", dist.NegativeBinomial2, (2.5, 0.8), (V([0.5, 4.0]), SCALE)),
    ("ZeroInflatedPoisson", dist.ZeroInflatedPoisson, (0.3, 3.0), (V([0.3, 0.7]), SCALE)),
    ("ZeroInflatedBinomial", lambda p: dist.ZeroInflatedDistribution(dist.Binomial(5, 0.6), gate=p),
     (0.3,), (V([0.3, 0.7]),)),
    ("ZeroInflatedLogits", lambda x: dist.ZeroInflatedDistribution(dist.Poisson(2.0), gate_logits=x),
     (0.3,), (V([0.3, -2.0]),)),
    ("ZeroInflatedNegativeBinomial2", lambda m, p: dist.ZeroInflatedNegativeBinomial2(m, 2.0, gate=p),
     (3.0, 0.3), (V([0.3, 0.7]), 0.1)),
    ("MixtureOfPoissons", lambda p, r: dist.MixtureSameFamily(dist.Categorical(p), dist.Poisson(r)),
     (V([0.3, 0.7]), V([1.0, 9.0])), (V([[0.3, 0.7], [0.9, 0.1]]), V([1.0, 9.0]))),
]  # fmt: skip
MULTINOMIAL = [
    ("MultinomialProbs", dist.Multinomial, (7, P3[0]), (V([7, 3]), P3)),
    ("MultinomialLogits", lambda n, x: dist.Multinomial(n, logits=x), (7, P3[0]), (7, P3)),
]


def cases(families, labels=("one", "batch")):
    return [
        pytest.param(construct, arguments, id=f"{name}-{label}")
        for name, construct, *both in families
        for label, arguments in zip(("one", "batch"), both, strict=True)
        if label in labels
    ]


def batches(families):
    """Enough for the law, which costs a compilation: unbatched draws are compared with those by row."""
    return cases(families, ["batch"])


def make(construct, arguments):
    with jax.enable_x64(True):
        return construct(*arguments)


def check_shape(distribution, x, n=N):
    assert x.shape == (n, *distribution.batch_shape, *distribution.event_shape)
    assert x.dtype == (np.int64 if distribution.is_discrete else np.float64)


def check_moments(x, mean, variance):
    """Sample means of x and of its squared deviation, against what they should be."""
    mean, variance = (np.broadcast_to(np.asarray(value), x.shape[1:]) for value in (mean, variance))
    for sample, expected in ((x, mean), ((x - mean) ** 2, variance)):
        error = sample.std(axis=0) / np.sqrt(len(x))
        assert np.all(np.abs(sample.mean(axis=0) - expected) <= 4.5 * error + 1e-9)


def check_uniform(u):
    """Kolmogorov-Smirnov of each column."""
    for column in u.reshape(len(u), -1).T:
        assert stats.kstest(column, "uniform").pvalue > 1e-5


def cdf(distribution, x):
    """The distribution function, or one minus it, also where NumPyro has it for the parts only."""
    if isinstance(distribution, dist.ExpandedDistribution):
        return cdf(distribution.base_dist, x)
    if isinstance(distribution, dist.TransformedDistribution):
        for transform in reversed(distribution.transforms):
            x = transform.inv(x)
        return cdf(distribution.base_dist, x)
    if isinstance(distribution, dist.VonMises):
        centred = (x - distribution.loc + np.pi) % (2 * np.pi) - np.pi
        return stats.vonmises(distribution.concentration).cdf(centred)
    if isinstance(distribution, dist.MixtureSameFamily | dist.MixtureGeneral):
        return jax.jit(jax.vmap(distribution.cdf))(x)
    return jax.jit(distribution.cdf)(x)


def check_law(distribution, x):
    with jax.enable_x64(True):
        try:
            u = None if distribution.event_shape else np.asarray(cdf(distribution, x))
        except NotImplementedError:
            u = None
        if u is None:
            check_moments(x, distribution.mean, distribution.variance)
        else:
            check_uniform(u)


def check_frequencies(distribution, x):
    """Chi-square of the counts of each element's values, the rare ones taken together."""
    values = np.arange(x.min(), x.max() + 1)
    with jax.enable_x64(True), dist.distribution.validation_enabled(False):
        ones = np.ones(distribution.batch_shape, np.int64)
        evaluate = jax.jit(lambda value: (jnp.exp(distribution.log_prob(value)), distribution.support(value)))
        density, inside = zip(*(evaluate(value * ones) for value in values), strict=True)
    probabilities = np.where(inside, density, 0)
    probabilities = np.broadcast_to(probabilities, (len(values), *x.shape[1:])).reshape(len(values), -1)
    for column, p in zip(x.reshape(len(x), -1).T, probabilities.T, strict=True):
        observed = np.array([(column == value).sum() for value in values])
        assert not observed[p < 1e-9].any()
        common = p * len(x) >= 10
        expected = np.append(p[common], max(1 - p[common].sum(), 0)) * len(x)
        observed = np.append(observed[common], observed[~common].sum())
        statistic = (((observed - expected) ** 2)[expected > 1e-6] / expected[expected > 1e-6]).sum()
        assert stats.chi2.sf(statistic, max(common.sum(), 1)) > 1e-5


@pytest.mark.usefixtures("host_only")
@pytest.mark.optimised  # thousands of draws through distribution functions that are loops
@pytest.mark.parametrize(("construct", "arguments"), batches(CONTINUOUS))
def test_continuous_distributions_have_their_law(construct, arguments):
    distribution = make(construct, arguments)
    x = draw(shared(distribution), generator(), N)
    check_shape(distribution, x)
    check_law(distribution, x)


@pytest.mark.usefixtures("host_only")
@pytest.mark.parametrize(("construct", "arguments"), batches(DISCRETE))
def test_discrete_distributions_have_their_law(construct, arguments):
    distribution = make(construct, arguments)
    x = draw(shared(distribution), generator(), N)
    check_shape(distribution, x)
    check_frequencies(distribution, x)


@pytest.mark.usefixtures("host_only")
@pytest.mark.parametrize(("construct", "arguments"), cases(MULTINOMIAL))
def test_multinomial_counts_have_their_law(construct, arguments):
    distribution = make(construct, arguments)
    x = draw(shared(distribution), generator(), N)
    check_shape(distribution, x)
    assert np.all(x.sum(axis=-1) == distribution.total_count)
    check_moments(x, distribution.mean, distribution.variance)


def as_rows(distribution, n):
    """The same parameters, but given for each execution."""
    return jax.tree.map(lambda leaf: np.repeat(leaf, n, axis=0), shared(distribution))


@pytest.mark.usefixtures("host_only")
@pytest.mark.parametrize(("construct", "arguments"), cases(CONTINUOUS + DISCRETE + MULTINOMIAL))
def test_parameters_by_row_draw_as_shared_ones_do(construct, arguments):
    distribution = make(construct, arguments)
    for n in (1, 1000):
        x = draw(shared(distribution), generator(), n)
        check_shape(distribution, x, n)
        np.testing.assert_allclose(draw(as_rows(distribution, n), generator(), n), x, rtol=1e-12)


@pytest.mark.usefixtures("host_only")
@pytest.mark.parametrize("method", ["onion", "cvine"])
@pytest.mark.parametrize("concentration", [1.5, np.array([0.5, 4.0])], ids=["one", "batch"])
def test_lkj_factors_have_beta_correlations(method, concentration):
    with jax.enable_x64(True):
        distribution = dist.LKJCholesky(4, concentration, sample_method=method)
    factor = draw(shared(distribution), generator(), N)
    check_shape(distribution, factor)
    assert np.all(np.triu(factor, 1) == 0)
    correlation = factor @ np.swapaxes(factor, -1, -2)
    np.testing.assert_allclose(np.diagonal(correlation, axis1=-2, axis2=-1), 1)
    marginal = np.asarray(concentration)[..., None] + 1
    i, j = np.tril_indices(4, -1)
    check_uniform(stats.beta(marginal, marginal).cdf((correlation[..., i, j] + 1) / 2))


@pytest.mark.usefixtures("host_only")
def test_multivariate_normal_has_its_covariance():
    with jax.enable_x64(True):
        x = draw(shared(dist.MultivariateNormal(jnp.zeros(2), scale_tril=TRIL)), generator(), N)
    product = x[:, 0] * x[:, 1]
    assert abs(product.mean() - (TRIL @ TRIL.T)[0, 1]) < 4.5 * product.std() / np.sqrt(N)


@pytest.mark.usefixtures("host_only")
def test_delta_repeats_its_value_and_keeps_its_kind():
    x = draw(shared(dist.Delta(np.array([1.5, 2.5]), event_dim=1).expand([3])), generator(), 4)
    np.testing.assert_array_equal(x, np.broadcast_to([1.5, 2.5], (4, 3, 2)))
    k = draw(shared(dist.Delta(np.array(3))), generator(), 4)
    assert k.dtype == np.int64
    np.testing.assert_array_equal(k, 3)
    with jax.enable_x64(True):
        rows = stacked([dist.Delta(1.0), dist.Delta(2.0)])
    np.testing.assert_array_equal(draw(rows, generator(), 2), [1.0, 2.0])


WRAPPED = {
    "expand": lambda: dist.Normal(1.0, 2.0).expand([3]),
    "expand_own_dims": lambda: dist.Normal(LOC, SCALE).expand([4, 3, 2]),
    "expand_size_one": lambda: dist.Normal(SCALE[:, :1], 1.0).expand([3, 2]),
    "expand_inner_size_one": lambda: dist.Normal(LOC[None], 1.0).expand([5, 3, 2]),
    "expand_twice": lambda: dist.Poisson(SCALE).expand([3, 2]).expand([2, 3, 2]),
    "to_event": lambda: dist.Normal(LOC, SCALE).to_event(1),
    "to_event_all": lambda: dist.Normal(LOC, SCALE).to_event(),
    "expand_to_event": lambda: dist.Gamma(SCALE, 2.0).expand([3, 2]).to_event(1),
    "to_event_expand": lambda: dist.Normal(LOC, 1.0).to_event(1).expand((4,)),
    "to_event_expand_to_event": lambda: dist.Normal(LOC, SCALE).to_event(1).expand((2, 3)).to_event(1),
    "mask": lambda: dist.Normal(LOC, 1.0).mask(np.array([True, False])),
    "mask_broadcast": lambda: dist.Poisson(3.0).mask(np.array([True, False])),
    "mask_false": lambda: dist.Normal(LOC, 1.0).mask(False),
    "mask_expand_to_event": lambda: dist.Normal(LOC, SCALE).mask(np.array([True, False])).expand([2, 3, 2]).to_event(2),
    "to_event_mask_expand": lambda: dist.Normal(LOC, SCALE).to_event(1).mask(SCALE[:, 0] > 0.7).expand([2, 3]),
    "dirichlet": lambda: dist.Dirichlet(np.array([1.0, 2.0, 3.0])).expand([2, 1]).to_event(1),
    "multivariate_normal": lambda: dist.MultivariateNormal(V([1.0, 2.0]), scale_tril=TRIL[None]).expand([4, 3]),
    "bernoulli": lambda: dist.Bernoulli(V([[0.2], [0.7]])).expand([2, 3]).to_event(2),
    "multinomial": lambda: dist.Multinomial(V([[7], [3]]), P3[0]).expand([2, 3]),
    "lognormal": lambda: dist.LogNormal(LOC, 0.1).to_event(1).expand((3,)),
    "affine_event": lambda: dist.TransformedDistribution(
        dist.Normal(LOC, 1.0).to_event(1), transforms.AffineTransform(V([5.0, 6.0]), 2.0)).expand([3]),
    "mixture": lambda: dist.MixtureSameFamily(
        dist.Categorical(V([0.3, 0.7])), dist.Normal(V([[0.0, 1.0], [5.0, 9.0]]), 1.0).to_event(1)).expand([3]),
    "mixture_general": lambda: dist.MixtureGeneral(
        dist.Categorical(P3[1, :2] / 0.9), [dist.Normal(LOC, 1.0), dist.Normal(V([3.0, -3.0]), 1.0)]).expand([3, 2]),
    "zero_inflated": lambda: dist.ZeroInflatedPoisson(0.3, SCALE).expand([3, 2]).to_event(1),
    "truncated": lambda: dist.TruncatedNormal(LOC, SCALE, low=0.0).expand([2, 3, 2]),
}  # fmt: skip

# Where NumPyro has none, or, before 0.22, warns of its own bounds: a truncated distribution.
TRUNCATED = stats.truncnorm(-LOC / SCALE, np.inf, LOC, SCALE)
MOMENTS = {
    "affine_event": ([2 * LOC + V([5.0, 6.0])] * 3, 4.0),
    "truncated": ([TRUNCATED.mean()] * 2, TRUNCATED.var()),
}


@pytest.mark.usefixtures("host_only")
@pytest.mark.parametrize("case", WRAPPED)
def test_wrapped_distributions_have_their_moments_and_independent_elements(case):
    if case == "mixture" and OLD_NUMPYRO:
        pytest.skip("NumPyro before 0.22 refuses components that are independent vectors")
    with jax.enable_x64(True):
        distribution = WRAPPED[case]()
    x = draw(shared(distribution), generator(), N)
    check_shape(distribution, x)
    with jax.enable_x64(True):
        mean, variance = MOMENTS.get(case) or (distribution.mean, distribution.variance)
    check_moments(x, mean, variance)
    # Expanded elements, which come first, are independent: one value of all events against the next.
    flat = x.reshape(N, int(np.prod(distribution.batch_shape)), -1)[..., 0].astype(float)
    for first, second in zip(flat.T[:-1], flat.T[1:], strict=True):
        assert abs(stats.spearmanr(first, second).statistic) < 4.5 / np.sqrt(N)


@pytest.mark.usefixtures("host_only")
def test_expanded_vectors_are_independent_of_each_other_only():
    with jax.enable_x64(True):
        distribution = dist.MultivariateNormal(jnp.zeros(2), scale_tril=TRIL).expand([2])
    x = draw(shared(distribution), generator(), N).reshape(N, 4)
    expected = np.kron(np.eye(2), TRIL @ TRIL.T)
    np.testing.assert_allclose(np.cov(x.T), expected, atol=0.05)


ROWS = {
    "Normal": lambda k: dist.Normal(10.0 * k, 1.0 + k).expand([2]).to_event(1),
    "LogNormal": lambda k: dist.LogNormal(1.0 * k, 0.1),
    "Gamma": lambda k: dist.Gamma(V([1.0, 10.0]) ** k, 1.0 + k),
    "InverseGamma": lambda k: dist.InverseGamma(10.0 + k, 1.0 + k),
    "Poisson": lambda k: dist.Poisson(10.0**k),
    "Bernoulli": lambda k: dist.Bernoulli(logits=V([1.0 * k, -1.0 * k])),
    "Binomial": lambda k: dist.Binomial(10 * k, 0.2 + 0.2 * k).expand([3]),
    "NegativeBinomial2": lambda k: dist.NegativeBinomial2(10.0**k, 2.0),
    "Dirichlet": lambda k: dist.Dirichlet(np.arange(1.0, 4.0) ** k),
    "MultivariateNormal": lambda k: dist.MultivariateNormal(10.0 * k * np.ones(2), scale_tril=(1 + k) * TRIL),
    "Multinomial": lambda k: dist.Multinomial(9, np.roll(P3, k, axis=-1)),
    "TruncatedNormal": lambda k: dist.TruncatedNormal(10.0 * k, 1.0, low=5.0, high=50.0),
    "Mixture": lambda k: dist.MixtureSameFamily(dist.Categorical(P3[0]), dist.Normal(V([k, 5.0, 30.0 * k]), 1.0)),
    "ZeroInflated": lambda k: dist.ZeroInflatedPoisson(0.2 * k, 5.0 * (k + 1)),
}


@pytest.mark.usefixtures("host_only")
@pytest.mark.parametrize("case", ROWS)
def test_rows_with_different_parameters_get_their_own(case):
    if case == "TruncatedNormal" and OLD_NUMPYRO:
        pytest.skip("NumPyro before 0.22 has no moments of truncated distributions")
    with jax.enable_x64(True):
        distributions = [ROWS[case](k) for k in range(4)]
    n = N // 4
    x = draw(stacked(distributions * n), generator(), 4 * n)
    check_shape(distributions[0], x, 4 * n)
    for k, distribution in enumerate(distributions):
        with jax.enable_x64(True):
            check_moments(x[k::4], distribution.mean, distribution.variance)


@pytest.mark.usefixtures("host_only")
def test_categories_follow_their_row():
    with jax.enable_x64(True):
        rows = stacked([dist.Categorical(np.eye(3)[[k % 3, 2]]) for k in range(30)])
    x = draw(rows, generator(), 30)
    np.testing.assert_array_equal(x, np.stack([np.arange(30) % 3, np.full(30, 2)], axis=-1))


@pytest.mark.usefixtures("host_only")
def test_shared_and_row_parameters_mix():
    with jax.enable_x64(True):
        distribution = dist.Normal(np.zeros(2), 1e-3).expand([4, 2])
    batched = shared(distribution)
    batched.base_dist.loc = np.arange(14.0).reshape(7, 2)
    x = draw(batched, generator(), 7)
    assert x.shape == (7, 4, 2)
    assert np.abs(x - batched.base_dist.loc[:, None]).max() < 0.01


@pytest.mark.usefixtures("host_only")
def test_rows_are_independent():
    x = draw(shared(dist.Normal(0.0, 1.0)), generator(), N)
    assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 4.5 / np.sqrt(N)


@pytest.mark.usefixtures("host_only")
def test_truncation_is_precise_far_out_in_the_tails():
    for low, high, sign in ((40.0, np.inf, 1), (40.0, 41.0, 1), (-41.0, -40.0, -1), (-np.inf, -40.0, -1)):
        with jax.enable_x64(True):
            distribution = dist.TruncatedNormal(0.0, 1.0, low=low, high=high)
        x = draw(shared(distribution), generator(), N)
        assert np.all((low <= x) & (x <= high))
        # So far out, the excess is all but exponential.
        assert abs((sign * x - 40).mean() * 40.05 - 1) < 0.05
    with jax.enable_x64(True):
        cauchy = dist.TruncatedCauchy(0.0, 1.0, low=1e9)
    # The tail of a Cauchy is a power: what is left of it is uniform.
    check_uniform(1e9 / draw(shared(cauchy), generator(), N)[:, None])


@pytest.mark.usefixtures("host_only")
def test_small_concentrations_give_corners_of_the_simplex():
    x = draw(shared(dist.Dirichlet(np.full(3, 1e-5))), generator(), 3000)
    assert np.isfinite(x).all()
    np.testing.assert_allclose(x.sum(axis=-1), 1)
    np.testing.assert_allclose(x.mean(axis=0), 1 / 3, atol=0.05)


def wild_rows(distribution, value):
    """Two good rows around one whose parameters are all replaced by a value."""

    def spoil(leaf):
        leaf = np.asarray(leaf, np.float64)
        return np.stack([leaf, np.full_like(leaf, value), leaf])

    return jax.tree.map(spoil, distribution)


@pytest.mark.usefixtures("host_only")
@pytest.mark.parametrize(("construct", "arguments"), cases(CONTINUOUS + DISCRETE + MULTINOMIAL))
def test_bad_rows_neither_raise_nor_touch_the_others(construct, arguments):
    distribution = make(construct, arguments)
    for value in (-1.0, -0.0, np.inf, -np.inf, 1e300, 1e-310, np.nan):
        x = draw(wild_rows(distribution, value), generator(), 3)
        check_shape(distribution, x, 3)
        assert np.isfinite(x[[0, 2]]).all()
    np.testing.assert_array_equal(x[1], 0 if distribution.is_discrete else np.nan)


NEGATIVE = {
    "scale": lambda s: [dist.Normal(0.0, s), dist.HalfNormal(s), dist.Cauchy(0.0, s), dist.Weibull(s, 2.0),
                        dist.Pareto(s, 2.0), dist.StudentT(3.0, 0.0, s), dist.LogNormal(0.0, s),
                        dist.TruncatedNormal(0.0, s, low=-1.0)],
    "shape": lambda a: [dist.Gamma(a, 1.0), dist.Gamma(1.0, a), dist.Exponential(a), dist.Beta(a, 1.0), dist.Chi2(a),
                        dist.InverseGamma(a, 1.0), dist.Dirichlet(V([a, 1.0])), dist.LKJCholesky(3, a),
                        dist.VonMises(0.0, a)],
    "count": lambda r: [dist.Poisson(r), dist.NegativeBinomial2(r, 1.0), dist.Binomial(5, r), dist.Bernoulli(r),
                        dist.Geometric(r), dist.Categorical(V([r, 1.0])), dist.Multinomial(5, V([r, 1.0]))],
}  # fmt: skip


@pytest.mark.usefixtures("host_only")
@pytest.mark.parametrize("kind", NEGATIVE)
def test_negative_parameters_give_nan_or_zero(kind):
    with jax.enable_x64(True), dist.distribution.validation_enabled(False):
        good, bad = NEGATIVE[kind](0.5), NEGATIVE[kind](-1.0)
    for distribution, negative in zip(good, bad, strict=True):
        x = draw(stacked([distribution, negative] * 50), generator(), 100)
        check_shape(distribution, x, 100)
        assert np.isfinite(x[::2]).all()
        if kind != "count":
            assert (np.isnan(x[1::2]).reshape(50, -1)).any(axis=-1).all(), type(distribution)
        else:
            np.testing.assert_array_equal(x[1::2], 0)
            assert x[::2].any()


@pytest.mark.usefixtures("host_only")
def test_a_rate_beyond_the_integers_is_bad():
    with jax.enable_x64(True):
        rows = stacked([dist.Poisson(rate) for rate in (5e6, 1e30, 5e6)])
    x = draw(rows, generator(), 3)
    assert x[1] == 0
    assert np.abs(x[[0, 2]] - 5e6).max() < 5e4


@pytest.mark.usefixtures("host_only")
def test_bad_weights_spoil_a_mixture():
    def mixture(p, component):
        return dist.MixtureSameFamily(dist.Categorical(V([p, 0.5])), component)

    with jax.enable_x64(True), dist.distribution.validation_enabled(False):
        normal = stacked([mixture(p, dist.Normal(V([0.0, 1.0]), 1.0)) for p in (0.5, np.nan)])
        poisson = stacked([mixture(p, dist.Poisson(V([50.0, 90.0]))) for p in (0.5, np.nan)])
    np.testing.assert_array_equal(np.isnan(draw(normal, generator(), 2)), [False, True])
    np.testing.assert_array_equal(draw(poisson, generator(), 2) > 0, [True, False])
    if not OLD_NUMPYRO:  # which refuses components that are independent vectors
        with jax.enable_x64(True), dist.distribution.validation_enabled(False):
            vector = stacked([mixture(p, dist.Normal(np.ones((2, 3)), 1.0).to_event(1)) for p in (0.5, np.nan)])
        np.testing.assert_array_equal(np.isnan(draw(vector, generator(), 2)), [[False] * 3, [True] * 3])


class Shifted(dist.Normal):
    """A user's distribution that draws in its own way."""

    def sample(self, key, sample_shape=()):
        return 100.0 + super().sample(key, sample_shape)


class Renamed(dist.Normal):
    """A user's distribution that draws as its parent does."""

    def log_prob(self, value):
        return super().log_prob(value)


class Coin(dist.Distribution):
    """A user's distribution from scratch, that draws booleans."""

    support = constraints.boolean
    pytree_data_fields = ("p",)

    def __init__(self, p):
        self.p = p
        super().__init__(jnp.shape(p))

    def sample(self, key, sample_shape=()):
        return jax.random.bernoulli(key, self.p, sample_shape + self.batch_shape)


class Silent(dist.Normal):
    """A user's distribution that cannot be drawn from."""

    def sample(self, key, sample_shape=()):
        raise NotImplementedError


@pytest.mark.parametrize("n", [1, 3, 300])
def test_a_subclass_that_overrides_sample_is_drawn_with_it(n):
    with jax.enable_x64(True):
        rows = stacked([Shifted(float(k), 1.0) for k in range(n)])
    x = draw(rows, generator(), n)
    assert x.shape == (n,)
    assert x.dtype == np.float64
    assert np.abs(x - 100 - np.arange(n)).max() < 6
    assert len(np.unique(x - np.arange(n))) == n


def test_a_subclass_within_wrappers_is_drawn_with_its_own_sample():
    with jax.enable_x64(True):
        distribution = Shifted(LOC[:, None], 1.0).expand([2, 3]).to_event(1).mask(False)
        mixture = dist.MixtureSameFamily(dist.Categorical(V([0.5, 0.5])), Shifted(V([0.0, 0.0]), 1.0))
        logarithm = dist.TransformedDistribution(Shifted(0.0, 1.0), transforms.PowerTransform(0.5))
    x = draw(shared(distribution), generator(), 4096)
    check_shape(distribution, x, 4096)
    check_moments(x, 100 + LOC[:, None], 1.0)
    assert abs(np.corrcoef(x[:, 0, 0], x[:, 0, 1])[0, 1]) < 4.5 / np.sqrt(4096)
    assert draw(shared(mixture), generator(), 4).min() > 90
    assert np.abs(draw(shared(logarithm), generator(), 4) - 10).max() < 1


@pytest.mark.usefixtures("host_only")
def test_a_subclass_that_inherits_sample_is_drawn_on_the_host():
    x = draw(shared(Renamed(1.0, 2.0)), generator(), N)
    check_moments(x, 1.0, 4.0)


def test_booleans_become_integers():
    with jax.enable_x64(True):
        rows = stacked([Coin(p) for p in (0.0, 1.0, 0.0)])
    x = draw(rows, generator(), 3)
    assert x.dtype == np.int64
    np.testing.assert_array_equal(x, [0, 1, 0])


@pytest.mark.parametrize("expand", [False, True])
def test_a_type_without_host_sampler_falls_back(expand):
    with jax.enable_x64(True):
        distribution = dist.SoftLaplace(LOC, 2.0)
        distribution = distribution.expand([3, 2]) if expand else distribution
    x = draw(shared(distribution), generator(), 4096)
    check_shape(distribution, x, 4096)
    with jax.enable_x64(True):
        check_moments(x, distribution.mean, distribution.variance)
    assert draw(shared(distribution), generator(), 4096)[5, 0] == pytest.approx(x[5, 0])
    assert not np.array_equal(draw(shared(distribution), generator(1), 4096), x)


def test_other_transforms_and_truncations_fall_back():
    with jax.enable_x64(True):
        ordered = dist.TransformedDistribution(dist.Normal(np.zeros(3), 1.0).to_event(1), transforms.OrderedTransform())
        laplace = dist.TruncatedDistribution(dist.Laplace(0.0, 1.0), low=2.0)
    x = draw(shared(ordered), generator(), 5)
    check_shape(ordered, x, 5)
    assert np.all(np.diff(x, axis=-1) > 0)
    check_uniform(1 - np.exp(2 - draw(shared(laplace), generator(), 4096)))


def test_the_fallback_draws_with_arrays_in_static_data():
    for _ in range(2):
        distribution = dist.DirichletMultinomial(np.ones((2, 3)), np.array([3, 8]), total_count_max=8)
        x = draw(shared(distribution), generator(), 3)
        np.testing.assert_array_equal(x.sum(axis=-1), [[3, 8]] * 3)


def test_few_sizes_are_compiled():
    traced = []

    class Counted(dist.Normal):
        def sample(self, key, sample_shape=()):
            traced.append(sample_shape)
            return super().sample(key, sample_shape)

    for n in (5, 6, 7, 8):
        with jax.enable_x64(True):
            draw(stacked([Counted(0.0, 1.0)] * n), generator(), n)
    assert len(traced) == 1


def test_the_fallback_draws_while_a_program_is_traced():
    rows = stacked([Shifted(1.0, 2.0)] * 3)

    def traced(x):
        drawn = draw(rows, generator(), 3)
        assert isinstance(drawn, np.ndarray)
        return x + drawn.sum()

    assert jax.jit(traced)(0.0) > 200


@pytest.mark.parametrize(
    "distribution",
    [
        dist.ImproperUniform(constraints.real, (), ()),
        dist.ImproperUniform(constraints.greater_than(1.0), (2,), (3,)),
        Silent(0.0, 1.0),
    ],
)
def test_no_sampler_is_an_error(distribution):
    with pytest.raises(NotImplementedError, match=f"^{type(distribution).__name__} has no sampler$"):
        draw(shared(distribution), generator(), 3)
    with pytest.raises(NotImplementedError, match=f"^{type(distribution).__name__} has no sampler$"):
        draw(shared(distribution.expand([4, *distribution.batch_shape]).to_event(1)), generator(), 3)


def test_draws_are_reproducible():
    for distribution in (dist.Normal(0.0, 1.0), dist.Poisson(3.0), Shifted(0.0, 1.0)):
        first, second = (draw(shared(distribution), generator(7), 6) for _ in range(2))
        np.testing.assert_array_equal(first, second)
