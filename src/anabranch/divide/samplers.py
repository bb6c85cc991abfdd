"""Draws from NumPyro distributions on the host, for a whole batch of program executions at once.

JAX's samplers are compiled for every distribution and shape they meet, which costs seconds (three for a Poisson),
while most programs need a handful of draws. NumPy's generators need no compilation, so the common distributions
have a NumPy sampler here; everything else falls back to the distribution's own `sample` under `jit` and `vmap`.

A sampler is called with the *target* batch shape of one execution, which may be larger than the distribution's own:
that is all it takes to expand a distribution into independent draws. Parameters are aligned with the target from the
right, behind their leading axis, and broadcast.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
from numpy.random import Generator
from numpyro.distributions import conjugate, discrete, transforms, truncated
from scipy import special

from anabranch.divide.dispatch import one_call

__all__ = ["draw"]

Array = np.ndarray
Shape = tuple[int, ...]
Sampler = Callable[[Any, Generator, int, Shape], Array]

TINY, BELOW_ONE = np.finfo(np.float64).tiny, 1 - np.finfo(np.float64).eps
LARGEST_COUNT = 9.2e18  # just below both int64's maximum and the largest rate of Generator.poisson
LARGEST_PROBABILITY = 1 + 1e-6  # a probability computed in single precision may overshoot one

# What decides how NumPyro's own classes draw: a subclass that overrides one of them is another distribution.
DRAWING_METHODS = ("__call__", "sample", "sample_with_intermediates", "component_sample", "icdf")


def draw(distribution: dist.Distribution, rng: Generator, n: int) -> Array:
    """Draws once for each of `n` executions: shape `(n, *batch_shape, *event_shape)`, float64 or int64.

    The pytree leaves of `distribution` are NumPy arrays with an extra leading axis, of length `n` for a parameter
    that differs by execution and of length 1 for one that does not. Where the parameters are bad the draws are NaN,
    or 0 if they are integers; a distribution that cannot be drawn from raises `NotImplementedError`.
    """
    # Bad and extreme parameters overflow or divide by zero on their way to the NaN or infinity that is wanted.
    with np.errstate(all="ignore"):
        return _draw(distribution, rng, n, tuple(distribution.batch_shape))


def _draw(d: dist.Distribution, rng: Generator, n: int, shape: Shape) -> Array:
    cls: Any = type(d)
    return _sampler(cls)(d, rng, n, shape)


@functools.lru_cache(maxsize=1024)
def _sampler(cls: Any) -> Sampler:
    """The sampler of a class, or of the ancestor that it inherits the drawing from, else the fallback."""
    for ancestor in cls.__mro__:
        if ancestor in SAMPLERS:
            inherits = all(getattr(cls, name, None) is getattr(ancestor, name, None) for name in DRAWING_METHODS)
            return SAMPLERS[ancestor] if inherits else _sample_with_jax
    return _sample_with_jax


def _align(parameter: Array, ndim: int) -> Array:
    """Inserts axes behind the leading one until there are `ndim` others."""
    missing = ndim + 1 - parameter.ndim
    if missing <= 0:
        return parameter
    return parameter.reshape(parameter.shape[:1] + (1,) * missing + parameter.shape[1:])


def _where_valid(valid: Array, sample: Callable[..., Array], parameters: list[Array], fill: float) -> Array:
    """`sample(*parameters)` with `fill` where they are not valid: NumPy would raise for one bad row in a batch."""
    if valid.all():
        return sample(*parameters)
    # One is within the domain of every parameter in this module.
    return np.where(valid, sample(*(np.where(valid, parameter, 1) for parameter in parameters)), fill)


def _scalar(names: str, valid: Callable[..., Array], sample: Callable[..., Array], fill: float = np.nan) -> Sampler:
    """The sampler of a distribution without event dimensions, from `sample(rng, size, *parameters)`."""
    attributes = names.split()

    def sampler(d: Any, rng: Generator, n: int, shape: Shape) -> Array:
        parameters = [_align(getattr(d, name), len(shape)) for name in attributes]
        return _where_valid(valid(*parameters), functools.partial(sample, rng, (n, *shape)), parameters, fill)

    return sampler


def _location_scale(standard: Callable[[Generator, Shape], Array]) -> Sampler:
    return _scalar("loc scale", lambda m, s: s >= 0, lambda rng, size, m, s: m + s * standard(rng, size))


def _half(standard: Callable[[Generator, Shape], Array]) -> Sampler:
    return _scalar("scale", lambda s: s >= 0, lambda rng, size, s: s * np.abs(standard(rng, size)))


def _are_positive(a: Array, b: Array) -> Array:
    return (a > 0) & (b > 0)


def _is_count(count: Array) -> Array:
    return (count >= 0) & (count <= LARGEST_COUNT)


def _is_probability(p: Array) -> Array:
    return (p >= 0) & (p <= LARGEST_PROBABILITY)


def _softplus(x: Array) -> Array:
    return np.logaddexp(0.0, x, dtype=np.float64)


def _expit(x: Array) -> Array:
    return special.expit(x, dtype=np.float64)


def _binomial(rng: Generator, size: Shape, total_count: Array, p: Array) -> Array:
    return rng.binomial(total_count.astype(np.int64), np.minimum(p, 1.0), size)


def _gamma_poisson(rng: Generator, size: Shape, concentration: Array, rate: Array) -> Array:
    return rng.poisson(np.minimum(rng.standard_gamma(concentration, size) / rate, LARGEST_COUNT))


def _geometric(rng: Generator, size: Shape, hazard: Array) -> Array:
    """The number of failures, from minus the logarithm of the probability of one: precise however rare success is."""
    return np.minimum(rng.standard_exponential(size) / hazard, LARGEST_COUNT).astype(np.int64)


def _von_mises(rng: Generator, size: Shape, loc: Array, concentration: Array) -> Array:
    # The absolute value is for a negative zero, which NumPy takes for a negative number.
    return (loc + rng.vonmises(0.0, np.abs(concentration), size) + np.pi) % (2 * np.pi) - np.pi


def _weights(d: Any, ndim: int) -> Array:
    """The probabilities of the categories along the last axis, not normalised."""
    if not isinstance(d, dist.CategoricalLogits | discrete.MultinomialLogits):
        return _align(d.probs, ndim + 1).astype(np.float64)
    logits = _align(d.logits, ndim + 1).astype(np.float64)
    return np.exp(logits - logits.max(axis=-1, keepdims=True))


def _are_weights(weights: Array) -> Array:
    total = weights.sum(axis=-1)
    return (weights >= 0).all(axis=-1) & (total > 0) & (total < np.inf)


def _choose(d: Any, rng: Generator, n: int, shape: Shape) -> Array:
    """A category for each element, or -1 where the probabilities are bad."""
    weights = _weights(d, len(shape))
    cumulative = weights.cumsum(axis=-1)
    threshold = rng.random((n, *shape)) * cumulative[..., -1]
    if cumulative.size == cumulative.shape[-1]:
        category = cumulative.ravel()[:-1].searchsorted(threshold, side="right")
    else:
        category = (cumulative[..., :-1] <= threshold[..., None]).sum(axis=-1)
    return np.where(_are_weights(weights), category, -1)


def _categorical(d: Any, rng: Generator, n: int, shape: Shape) -> Array:
    return np.maximum(_choose(d, rng, n, shape), 0)


def _select(category: Array, components: Array) -> Array:
    """Takes each element's category from the axis of `components` that follows the axes of `category`."""
    axis = category.ndim
    category = category.reshape(category.shape + (1,) * (components.ndim - axis))
    chosen = np.take_along_axis(components, np.maximum(category, 0), axis)
    bad = np.nan if chosen.dtype.kind == "f" else 0
    return np.where(category < 0, bad, chosen).squeeze(axis)


def _mixture_same_family(d: Any, rng: Generator, n: int, shape: Shape) -> Array:
    category = _choose(d.mixing_distribution, rng, n, shape)
    return _select(category, _draw(d.component_distribution, rng, n, (*shape, d.mixture_size)))


def _mixture_general(d: Any, rng: Generator, n: int, shape: Shape) -> Array:
    category = _choose(d.mixing_distribution, rng, n, shape)
    components = [_draw(component, rng, n, shape) for component in d.component_distributions]
    return _select(category, np.stack(components, axis=1 + len(shape)))


def _multinomial(d: Any, rng: Generator, n: int, shape: Shape) -> Array:
    weights = _weights(d, len(shape))
    # NumPyro holds the total count as static data, so it has no leading axis.
    total_count = _align(np.asarray(d.total_count)[None], len(shape))
    valid = _are_weights(weights) & _is_count(total_count)
    weights = np.where(valid[..., None], weights, 1.0)
    probabilities = weights / weights.sum(axis=-1, keepdims=True)
    return rng.multinomial(np.where(valid, total_count, 0).astype(np.int64), probabilities, (n, *shape))


def _dirichlet(d: Any, rng: Generator, n: int, shape: Shape) -> Array:
    size = (n, *shape, *d.event_shape)

    def sample(concentration: Array) -> Array:
        # In logarithms, since gamma variates of a small concentration would all underflow to zero.
        x = np.log(rng.standard_gamma(concentration + 1, size)) - rng.standard_exponential(size) / concentration
        x = np.exp(x - x.max(axis=-1, keepdims=True))
        return x / x.sum(axis=-1, keepdims=True)

    concentration = _align(d.concentration, len(shape) + 1)
    return _where_valid(np.all(concentration > 0, axis=-1, keepdims=True), sample, [concentration], np.nan)


def _multivariate_normal(d: Any, rng: Generator, n: int, shape: Shape) -> Array:
    standard = rng.standard_normal((n, *shape, *d.event_shape, 1))
    return _align(d.loc, len(shape) + 1) + (_align(d.scale_tril, len(shape) + 2) @ standard)[..., 0]


def _lkj_cholesky(d: Any, rng: Generator, n: int, shape: Shape) -> Array:
    """The onion method: a row is a point on the sphere, shrunk to a beta-distributed squared length."""
    dimension = int(d.dimension)
    rows = np.arange(1, dimension)
    a, b = rows / 2, _align(d.concentration, len(shape))[..., None] + (dimension - 1 - rows) / 2
    size = (n, *shape, dimension - 1)
    squared = _where_valid(b > 0, lambda a, b: rng.beta(a, b, size), [a, b], np.nan)
    point = np.tril(rng.standard_normal((*size, dimension - 1)))
    factor = np.zeros((n, *shape, dimension, dimension))
    factor[..., 0, 0] = 1
    factor[..., 1:, :-1] = point * np.sqrt(squared / (point**2).sum(axis=-1))[..., None]
    factor[..., rows, rows] = np.sqrt(1 - squared)
    return factor


# The logarithm of the standard distribution function and the inverse of it, for symmetric distributions.
SYMMETRIC: dict[type, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    dist.Normal: (special.log_ndtr, special.ndtri_exp),
    dist.Cauchy: (lambda x: np.log(np.arctan2(1, -x) / np.pi), lambda logq: -1 / np.tan(np.pi * np.exp(logq))),
    dist.Logistic: (lambda x: -_softplus(-x), lambda logq: logq - np.log(-np.expm1(logq))),
}


def _truncated(d: Any, rng: Generator, n: int, shape: Shape) -> Array:
    if type(d.base_dist) not in SYMMETRIC:
        return _sample_with_jax(d, rng, n, shape)
    log_cdf, inverse = SYMMETRIC[type(d.base_dist)]
    loc, scale = _align(d.base_dist.loc, len(shape)), _align(d.base_dist.scale, len(shape))
    low = _align(d.low, len(shape)).astype(np.float64) if hasattr(d, "low") else np.float64(-np.inf)
    high = _align(d.high, len(shape)).astype(np.float64) if hasattr(d, "high") else np.float64(np.inf)
    a, b = (low - loc) / scale, (high - loc) / scale
    # An interval in the upper tail is reflected into the lower one, where the logarithm keeps its precision.
    flip = a > 0
    a, b = np.where(flip, -b, a), np.where(flip, -a, b)
    u = np.maximum(rng.random((n, *shape)), 2.0**-54)
    x = inverse(np.logaddexp(np.log1p(-u) + log_cdf(a), np.log(u) + log_cdf(b)))
    x = np.clip(loc + scale * np.where(flip, -x, x), low, high)
    return np.where((scale > 0) & (low <= high), x, np.nan)


def _zero_inflated(d: Any, rng: Generator, n: int, shape: Shape) -> Array:
    # The comparison is false for a gate that is not a number.
    return np.where(rng.random((n, *shape)) >= _align(d.gate, len(shape)), _draw(d.base_dist, rng, n, shape), 0)


def _delta(d: Any, rng: Generator, n: int, shape: Shape) -> Array:
    v = _align(d.v, len(shape) + len(d.event_shape))
    return np.broadcast_to(v, (n, *shape, *d.event_shape)).astype(_wide(v.dtype))


def _wide(dtype: np.dtype) -> type:
    return np.int64 if dtype.kind in "iub" else np.float64


TRANSFORMS: dict[type, Callable[[Any, Array], Array]] = {
    transforms.AffineTransform: lambda t, x: _align(t.loc, x.ndim - 1) + _align(t.scale, x.ndim - 1) * x,
    transforms.ExpTransform: lambda t, x: np.exp(x),
    transforms.SigmoidTransform: lambda t, x: np.clip(_expit(x), TINY, BELOW_ONE),
    transforms.PowerTransform: lambda t, x: x ** _align(t.exponent, x.ndim - 1),
    transforms.AbsTransform: lambda t, x: np.abs(x),
}


def _transformed(d: Any, rng: Generator, n: int, shape: Shape) -> Array:
    if not all(type(transform) in TRANSFORMS for transform in d.transforms):
        return _sample_with_jax(d, rng, n, shape)
    x = _draw(d.base_dist, rng, n, shape).astype(np.float64, copy=False)
    for transform in d.transforms:
        x = TRANSFORMS[type(transform)](transform, x)
    return x


def _wrapper(d: Any, rng: Generator, n: int, shape: Shape) -> Array:
    # Batch dimensions that the wrapper took for its events are not part of its target, but of that of its base.
    return _draw(d.base_dist, rng, n, shape + tuple(d.base_dist.batch_shape[len(d.batch_shape) :]))


def _sample_rows(seed: int, rows: tuple, *, structure: Any, axes: tuple, shape: Shape, n: int) -> jax.Array:
    def sample(key: jax.Array, row: tuple) -> jax.Array:
        return jax.tree_util.tree_unflatten(structure, row).expand(shape).sample(key)

    return jax.vmap(sample, in_axes=(0, axes))(jax.random.split(jax.random.key(seed), n), rows)


_sample_rows_compiled = jax.jit(_sample_rows, static_argnames=("structure", "axes", "shape", "n"))


def _sample_with_jax(d: dist.Distribution, rng: Generator, n: int, shape: Shape) -> Array:
    """The distribution's own sampler, for a power of two of rows so that few sizes are compiled."""
    padded = 1 << max(n - 1, 0).bit_length()
    # Rows are repeated to pad: other values might be bad parameters, on which some samplers never end.
    row = np.minimum(np.arange(padded), n - 1)
    leaves, structure = jax.tree_util.tree_flatten(d)
    axes = tuple(None if len(leaf) == 1 else 0 for leaf in leaves)
    rows = tuple(leaf[0] if axis is None else leaf[row] for leaf, axis in zip(leaves, axes, strict=True))
    static: dict[str, Any] = {"structure": structure, "axes": axes, "shape": shape, "n": padded}
    seed = int(rng.integers(2**63))
    with jax.enable_x64(True), jax.ensure_compile_time_eval(), one_call():
        try:
            try:
                sample = np.asarray(_sample_rows_compiled(seed, rows, **static))
            except ValueError:
                # Static data that holds arrays, as total counts do, cannot be looked up among what was compiled.
                sample = np.asarray(_sample_rows(seed, rows, **static))
        except NotImplementedError as error:
            raise NotImplementedError(f"{type(d).__name__} has no sampler") from error
    return sample[:n].astype(_wide(sample.dtype))


# fmt: off
SAMPLERS: dict[Any, Sampler] = {
    dist.ExpandedDistribution: _wrapper,
    dist.Independent: _wrapper,
    dist.MaskedDistribution: _wrapper,
    dist.TransformedDistribution: _transformed,
    dist.Delta: _delta,

    dist.Normal: _location_scale(Generator.standard_normal),
    dist.Cauchy: _location_scale(Generator.standard_cauchy),
    dist.Laplace: _location_scale(lambda rng, size: rng.laplace(size=size)),
    dist.Logistic: _location_scale(lambda rng, size: rng.logistic(size=size)),
    dist.Gumbel: _location_scale(lambda rng, size: rng.gumbel(size=size)),
    dist.HalfNormal: _half(Generator.standard_normal),
    dist.HalfCauchy: _half(Generator.standard_cauchy),
    dist.StudentT: _scalar("df loc scale", lambda df, m, s: (df > 0) & (s >= 0),
                           lambda rng, size, df, m, s: m + s * rng.standard_t(df, size)),
    dist.Uniform: _scalar("low high", lambda a, b: a <= b, lambda rng, size, a, b: a + (b - a) * rng.random(size)),
    dist.Exponential: _scalar("rate", lambda r: r > 0, lambda rng, size, r: rng.standard_exponential(size) / r),
    dist.Gamma: _scalar("concentration rate", _are_positive,
                        lambda rng, size, a, r: rng.standard_gamma(a, size) / r),
    dist.Beta: _scalar("concentration1 concentration0", _are_positive,
                       lambda rng, size, a, b: rng.beta(a, b, size)),
    dist.Kumaraswamy: _scalar(
        "concentration1 concentration0", _are_positive, lambda rng, size, a, b: np.clip(
            (-np.expm1(-rng.standard_exponential(size) / b)) ** (1 / a), TINY, BELOW_ONE)),
    dist.Weibull: _scalar("scale concentration", _are_positive, lambda rng, size, s, a: s * rng.weibull(a, size)),
    # Pareto is a transformed distribution too, but its scale may not be negative as that of a transform may.
    dist.Pareto: _scalar("scale alpha", _are_positive,
                         lambda rng, size, s, a: s * np.exp(rng.standard_exponential(size) / a)),
    dist.VonMises: _scalar("loc concentration", lambda m, k: k >= 0, _von_mises),
    truncated.LeftTruncatedDistribution: _truncated,
    truncated.RightTruncatedDistribution: _truncated,
    truncated.TwoSidedTruncatedDistribution: _truncated,

    dist.Dirichlet: _dirichlet,
    dist.MultivariateNormal: _multivariate_normal,
    dist.LKJCholesky: _lkj_cholesky,

    dist.BernoulliProbs: _scalar(
        "probs", _is_probability, lambda rng, size, p: (rng.random(size) < p).astype(np.int64), fill=0),
    dist.BernoulliLogits: _scalar(
        "logits", lambda x: x == x, lambda rng, size, x: (rng.logistic(size=size) < x).astype(np.int64), fill=0),
    dist.BinomialProbs: _scalar(
        "total_count probs", lambda count, p: _is_count(count) & _is_probability(p), _binomial, fill=0),
    dist.BinomialLogits: _scalar(
        "total_count logits", lambda count, x: _is_count(count) & (x == x),
        lambda rng, size, count, x: _binomial(rng, size, count, _expit(x)), fill=0),
    dist.BetaBinomial: _scalar(
        "concentration1 concentration0 total_count",
        lambda a, b, count: _are_positive(a, b) & (a < np.inf) & (b < np.inf) & _is_count(count),
        lambda rng, size, a, b, count: _binomial(rng, size, count, rng.beta(a, b, size)), fill=0),
    dist.GeometricProbs: _scalar(
        "probs", lambda p: (p > 0) & _is_probability(p),
        lambda rng, size, p: _geometric(rng, size, -np.log1p(-np.minimum(p, 1.0))), fill=0),
    dist.GeometricLogits: _scalar(
        "logits", lambda x: _softplus(x) > 0, lambda rng, size, x: _geometric(rng, size, _softplus(x)), fill=0),
    dist.Poisson: _scalar("rate", _is_count, lambda rng, size, r: rng.poisson(r, size), fill=0),
    conjugate.GammaPoisson: _scalar(
        "concentration rate", lambda a, r: _are_positive(a, r) & (a < np.inf), _gamma_poisson, fill=0),
    dist.DiscreteUniform: _scalar(
        "low high", lambda a, b: (a <= b) & (np.abs(a) <= LARGEST_COUNT) & (np.abs(b) <= LARGEST_COUNT),
        lambda rng, size, a, b: rng.integers(a.astype(np.int64), b.astype(np.int64), size, endpoint=True), fill=0),
    dist.CategoricalProbs: _categorical,
    dist.CategoricalLogits: _categorical,
    discrete.MultinomialProbs: _multinomial,
    discrete.MultinomialLogits: _multinomial,
    discrete.ZeroInflatedProbs: _zero_inflated,
    dist.MixtureSameFamily: _mixture_same_family,
    dist.MixtureGeneral: _mixture_general,
}
# fmt: on
