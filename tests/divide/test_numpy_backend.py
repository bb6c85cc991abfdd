"""The NumPy evaluator gives what JAX gives, primitive by primitive and for whole densities."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax
from jax.extend import core
from jax.extend.core import primitives as P
from numpyro.distributions import biject_to, constraints

from anabranch.divide import numpy_backend

pytestmark = pytest.mark.one_in(8)

N = 5


def draws(*shape, low=-2.0, high=2.0, dtype=np.float64, seed=0):
    """A batch of N arrays of the given shape."""
    return np.random.default_rng([seed, *shape]).uniform(low, high, (N, *shape)).astype(dtype)


def integers(*shape, low=-5, high=6, dtype=np.int64, seed=0):
    return np.random.default_rng([seed, *shape]).integers(low, high, (N, *shape)).astype(dtype)


def spd(size, seed=0):
    factor = draws(size, size, seed=seed)
    return factor @ factor.swapaxes(-1, -2) + size * np.eye(size)


def simplex(size):
    weights = draws(size, low=0.1, high=1.0)
    return weights / weights.sum(axis=-1, keepdims=True)


def corr_cholesky(size):
    with jax.enable_x64(True):
        free = draws(size * (size - 1) // 2)
        return np.asarray(jax.vmap(biject_to(constraints.corr_cholesky))(free))


def batchings(args):
    """The arguments with all of them batched, none, only the odd ones, and only the even ones."""
    yield args
    yield [a[:1] for a in args]
    if len(args) > 1:
        yield [a if i % 2 else a[:1] for i, a in enumerate(args)]
        yield [a[:1] if i % 2 else a for i, a in enumerate(args)]


def check(function, args, tolerance=1e-12, needs_jax=False):
    """Compare the evaluator with JAX for every batching; one compilation serves all of them."""
    with jax.enable_x64(True):
        jaxpr = jax.make_jaxpr(function)(*[a[0] for a in args])
        # Without optimisation compiling is faster and the arithmetic is done as it is written.
        reference = jax.jit(
            jax.vmap(lambda *xs: jax.tree.leaves(function(*xs))), compiler_options={"xla_backend_optimization_level": 0}
        )
        supported = all(numpy_backend.supports(eqn.primitive, eqn.params) for eqn in jaxpr.eqns)
        assert supported != needs_jax
        cases = [(some, reference(*[np.broadcast_to(a, (N, *a.shape[1:])) for a in some])) for some in batchings(args)]
    for some, expected in cases:
        size = max(a.shape[0] for a in some)
        actual = numpy_backend.evaluate_jaxpr(jaxpr, some)
        assert len(actual) == len(expected)
        for got, want in zip(actual, map(np.asarray, expected), strict=True):
            assert isinstance(got, np.ndarray)
            assert got.dtype == want.dtype
            assert got.shape[0] in (1, size)
            assert got.shape[1:] == want.shape[1:]
            got = np.broadcast_to(got, (size, *got.shape[1:]))
            np.testing.assert_allclose(got, want[:size], rtol=tolerance, atol=tolerance)


# --- Elementwise -----------------------------------------------------------------------------------------------------

POSITIVE = partial(draws, low=0.1, high=4.0)
UNIT = partial(draws, low=-0.95, high=0.95)
SPECIAL_VALUES = np.array([[np.nan], [np.inf], [-np.inf], [0.0], [-1.0]])

UNARY = {
    **{
        f.__name__: (f, draws)
        for f in (
            lax.abs,
            lax.asinh,
            lax.atan,
            lax.bessel_i0e,
            lax.bessel_i1e,
            lax.cbrt,
            lax.ceil,
            lax.cos,
            lax.cosh,
            lax.erf,
            lax.erfc,
            lax.exp,
            lax.exp2,
            lax.expm1,
            lax.floor,
            lax.is_finite,
            lax.logistic,
            lax.neg,
            lax.sign,
            lax.sin,
            lax.sinh,
            lax.square,
            lax.tan,
            lax.tanh,
            lax.stop_gradient,
        )
    },
    **{f.__name__: (f, POSITIVE) for f in (lax.digamma, lax.lgamma, lax.log, lax.log1p, lax.rsqrt, lax.sqrt)},
    **{f.__name__: (f, UNIT) for f in (lax.acos, lax.asin, lax.atanh, lax.erf_inv)},
    "acosh": (lax.acosh, partial(draws, low=1.1, high=4.0)),
}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    function, sample = UNARY[name]
    check(lambda x, s, wide: (function(x), function(s), function(wide)), [sample(3), sample(), SPECIAL_VALUES])


def test_rounding():
    halves = np.array([[-1.5], [-0.5], [0.49999999999999994], [0.5], [2.5]])
    check(
        lambda x: (lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)),
        [halves],
    )


@pytest.mark.parametrize("exponent", [-3, -1, 0, 1, 2, 3, 7])
def test_integer_pow(exponent):
    check(lambda x: lax.integer_pow(x, exponent), [draws(3)])


BINARY_FLOAT = [
    lax.add,
    lax.sub,
    lax.mul,
    lax.div,
    lax.rem,
    lax.max,
    lax.min,
    lax.atan2,
    lax.nextafter,
    lax.eq,
    lax.ne,
    lax.lt,
    lax.le,
    lax.gt,
    lax.ge,
]


@pytest.mark.parametrize("function", BINARY_FLOAT, ids=lambda f: f.__name__)
def test_binary(function):
    # A scalar beside an array stays a scalar in the jaxpr.
    check(lambda x, y, s: (function(x, y), function(x, s), function(s, y)), [draws(N, 2), draws(N, 2, seed=1), draws()])


BINARY_INT = [
    lax.add,
    lax.sub,
    lax.mul,
    lax.div,
    lax.rem,
    lax.max,
    lax.min,
    lax.bitwise_and,
    lax.bitwise_or,
    lax.bitwise_xor,
    lax.shift_left,
    lax.shift_right_arithmetic,
    lax.shift_right_logical,
    lax.lt,
]


@pytest.mark.parametrize("function", BINARY_INT, ids=lambda f: f.__name__)
def test_binary_of_integers(function):
    wide = (integers(4), integers(4, seed=1, low=-3, high=4))
    small = (integers(4, dtype=np.int32), integers(4, seed=1, low=0, high=3, dtype=np.int32))
    unsigned = (integers(4, low=0, dtype=np.uint8), integers(4, seed=1, low=0, high=3, dtype=np.uint8))
    check(lambda a, b, c, d, e, f: (function(a, b), function(c, d), function(e, f)), [*wide, *small, *unsigned])


def test_unary_of_integers_and_booleans():
    check(
        lambda i, u, b: (
            lax.abs(i),
            lax.sign(i),
            -i,
            lax.bitwise_not(i),
            lax.bitwise_not(b),
            lax.population_count(i),
            lax.sign(u),
            lax.integer_pow(i, 3),
            b & b,
            b | ~b,
            b ^ b,
        ),
        [integers(4), integers(4, low=0, dtype=np.uint8), integers(4) > 0],
    )


def test_pow():
    check(
        lambda x, y, i, f, j: (lax.pow(x, y), lax.pow(x, i), lax.pow(f, j)),
        [POSITIVE(3), draws(3), integers(3), draws(3, dtype=np.float32), integers(3, low=0)],
        tolerance=1e-6,
    )
    check(lambda x, y: lax.pow(x, y), [POSITIVE(3), draws(3)])


def test_float32_stays_float32():
    check(
        lambda x: (
            lax.exp(x),
            lax.lgamma(x),
            x * 2,
            lax.logistic(x),
            lax.sqrt(x),
            jnp.sum(x),
            lax.integer_pow(x, -2),
            lax.erf_inv(x / 8),
            lax.cumsum(x),
            lax.round(x),
        ),
        [draws(3, low=0.1, dtype=np.float32)],
        tolerance=1e-5,
    )


def test_special_functions_of_several_arguments():
    check(
        lambda a, b, x: (lax.igamma(a, b), lax.igammac(a, b), lax.betainc(a, b, x)),
        [POSITIVE(3), POSITIVE(3, seed=1), draws(3, low=0.01, high=0.99)],
    )
    check(
        lambda n, x: (lax.polygamma(n, x), lax.zeta(n + 2.0, x)),
        [integers(3, low=0, high=4).astype(float), POSITIVE(3)],
    )


def test_choices():
    check(
        lambda w, k, a, b, s: (
            lax.select(w, a, b),
            lax.select_n(k, a, b, -a),
            lax.select(s > 0, a, b),
            jnp.where(w, a, s),
            lax.clamp(s - 1, a, s + 1),
            lax.clamp(-1.0, a, 1.0),
        ),
        [draws(4) > 0, integers(4, low=0, high=3, dtype=np.int32), draws(4), draws(4, seed=1), draws()],
    )


EXTREMES = np.array([[1e30], [-1e30], [np.nan], [-1.7], [300.4]])


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "int64", "uint8", "uint64", "float32", "float64"])
def test_conversions(dtype):
    convert = partial(lax.convert_element_type, new_dtype=dtype)
    check(
        lambda x, i, b, e: (convert(x), convert(i), convert(b), convert(e)),
        [draws(3, low=0), integers(3), draws(3) > 0, EXTREMES],
        tolerance=1e-6,
    )


def test_bits_and_precision():
    check(
        lambda x, i: (
            lax.reduce_precision(x, 11, 52),
            lax.reduce_precision(x, 8, 23),
            lax.reduce_precision(x, 5, 10),
            lax.bitcast_convert_type(x, jnp.int64),
            lax.bitcast_convert_type(i, jnp.int32),
            lax.bitcast_convert_type(lax.bitcast_convert_type(i, jnp.int32), jnp.float64),
        ),
        [draws(3), integers(3)],
    )


def test_complex():
    check(
        lambda x, y: (
            lax.real(lax.complex(x, y)),
            lax.imag(lax.conj(lax.complex(x, y))),
            lax.complex(x, y) * 2j,
            lax.abs(lax.complex(x, y)),
        ),
        [draws(3), draws(3, seed=1)],
    )


# --- Shapes ----------------------------------------------------------------------------------------------------------

SHAPES = {
    "iota": lambda x: x + lax.broadcasted_iota(jnp.int32, (3, 4), 1) + jnp.arange(4.0),
    "broadcast_in_dim": lambda x: lax.broadcast_in_dim(x, (3, 2, 4), (0, 2)),
    "broadcast_large": lambda x: lax.broadcast_in_dim(x, (500, 3, 4), (1, 2)),
    "broadcast_one": lambda x: jnp.broadcast_to(x[:, :1], (3, 4)),
    "reshape": lambda x: (x.reshape(2, 6), x.ravel(), lax.reshape(x, (12,), dimensions=(1, 0))),
    "squeeze": lambda x: (x[:1, :1].squeeze(), lax.squeeze(x[:, :1], (1,))),
    "expand_dims": lambda x: lax.expand_dims(x, (0, 2)),
    "transpose": lambda x: (x.T, jnp.moveaxis(x[None], 0, 1)),
    "rev": lambda x: (x[::-1], lax.rev(x, (0, 1))),
    "concatenate": lambda x: jnp.concatenate([x, x[:, :2], jnp.ones((3, 1))], axis=1),
    "stack": lambda x: (jnp.stack([x[0], jnp.zeros(4)], axis=1), *jnp.unstack(x, axis=1)),
    "tile": lambda x: jnp.tile(x, (2, 3)),
    "slice": lambda x: (x[1:, ::2], lax.slice(x, (0, 1), (3, 4), (2, 1))),
    "split": lambda x: jnp.split(x, [1, 3], axis=1),
    "barrier": lambda x: lax.optimization_barrier((x, x + 1)),
    "empty": lambda x: (x[:0], jnp.concatenate([x[:0], x]), x[:0].sum(), lax.reduce_max(x[:0], (0,))),
    "triangle": lambda x: (jnp.tril(x), jnp.diag(x), jnp.diag(x[0]), jnp.triu(x, 1)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name):
    check(SHAPES[name], [draws(3, 4)])


@pytest.mark.parametrize(
    "config",
    [
        ((1, 2, 0), (0, 1, 2)),
        ((-1, 0, 0), (0, -2, 0)),
        ((-1, -1, 2), (2, -3, 1)),
        ((-2, 3, 1), (-3, -1, 0)),
        ((-5, 3, 0), (0, 0, 0)),
        ((3, -6, 0), (0, 0, 0)),
    ],
    ids=str,
)
def test_pad(config):
    check(lambda x, value: lax.pad(x, value, config), [draws(3, 4), draws()])


# --- Positions -------------------------------------------------------------------------------------------------------


def test_dynamic_slices():
    check(
        lambda x, i, j, u: (
            lax.dynamic_slice(x, (i, j), (2, 3)),
            lax.dynamic_update_slice(x, u, (i, j)),
            lax.dynamic_index_in_dim(x, i, 0, keepdims=False),
        ),
        [draws(4, 5), integers(low=-2, high=6), integers(low=0, high=6, seed=1), draws(2, 2)],
    )


GATHERS = {
    "row": lambda x, i, j: x[i[0]],
    "rows": lambda x, i, j: x[i],
    "column": lambda x, i, j: x[:, j],
    "pairs": lambda x, i, j: x[i, j],
    "outer": lambda x, i, j: x[i[:, None], j[None, :]],
    "take_along": lambda x, i, j: jnp.take_along_axis(x, j[None, :] % 5, axis=1),
    "clip": lambda x, i, j: x.at[i].get(mode="clip"),
    "fill": lambda x, i, j: (
        x.at[i].get(mode="fill"),
        i.at[j].get(mode="fill"),
        (x > 0).at[:, j].get(mode="fill"),
        x.at[i, j].get(mode="fill", fill_value=7.0),
    ),
    "windows": lambda x, i, j: lax.gather(
        x, i[:, None], lax.GatherDimensionNumbers((0, 2), (), (0,)), (2, 3), mode=lax.GatherScatterMode.CLIP
    ),
    "inner_vmap": lambda x, i, j: jax.vmap(lambda row, k: row[k])(x[:3], j),
    "inner_vmap_window": lambda x, i, j: jax.vmap(lambda row, k: lax.dynamic_slice(row, (k,), (2,)))(x[:3], j),
}


@pytest.mark.parametrize("name", GATHERS)
def test_gather(name):
    check(GATHERS[name], [draws(4, 5), integers(3, low=-6, high=7), integers(3, low=-6, high=7, seed=1)])


SCATTERS = {
    "set": lambda x, i, u: x.at[i].set(u),
    "set_scalar": lambda x, i, u: x.at[i[0], 2].set(u[0, 0]),
    "add": lambda x, i, u: x.at[i].add(u),
    "subtract": lambda x, i, u: x.at[i].subtract(u),
    "multiply": lambda x, i, u: x.at[i].multiply(u),
    "min": lambda x, i, u: x.at[i].min(u),
    "max": lambda x, i, u: x.at[i].max(u),
    "clip": lambda x, i, u: x.at[i].add(u, mode="clip"),
    "columns": lambda x, i, u: x.at[:, i].add(u.T[:4]),
    "pairs": lambda x, i, u: x.at[i, i + 1].add(u[:, 0]),
    "inner_vmap": lambda x, i, u: jax.vmap(lambda row, k, v: row.at[k].add(v))(x[:3], i, u[:, 0]),
    "windows": lambda x, i, u: lax.scatter_add(
        x, i[:, None], u[:, :2, None] * jnp.ones(5), lax.ScatterDimensionNumbers((1, 2), (), (0,))
    ),
    "put_along": lambda x, i, u: jnp.put_along_axis(x, i[None, :] % 5, 1.5, axis=1, inplace=False),
}


@pytest.mark.parametrize("name", SCATTERS)
def test_scatter(name):
    check(SCATTERS[name], [draws(4, 5), integers(3, low=-6, high=6), draws(3, 5)])


def test_scatter_with_a_function_is_left_to_jax():
    check(lambda x: x.at[1].apply(jnp.sin), [draws(4)], needs_jax=True)


# --- Reductions, scans, orders ---------------------------------------------------------------------------------------

REDUCTIONS = {
    "sum": lambda x: (x.sum(), x.sum(0), x.sum((0, 1))),
    "prod": lambda x: x.prod(1),
    "max": lambda x: (x.max(), x.max(1)),
    "min": lambda x: (x.min(), x.min(0)),
    "logical": lambda x: ((x > 0).all(0), (x > 0).any(1), lax.reduce_xor(x > 0, (0,))),
    "narrow": lambda x: (
        lax.reduce_sum(x.astype("int8"), (0,)),
        lax.reduce_prod(x.astype("int32"), (1,)),
        lax.reduce_and((x * 9).astype("int32"), (0,)),
        (x > 0).sum(),
        lax.reduce_max(x > 0, (0,)),
    ),
    "argmax": lambda x: (jnp.argmax(x), jnp.argmin(x, 1), lax.argmax(x, 0, jnp.int32), jnp.argmax(x > 0, 1)),
    "cumulative": lambda x: (
        jnp.cumsum(x, 1),
        lax.cumsum(x, 0, reverse=True),
        jnp.cumprod(x, 0),
        lax.cummax(x, 1),
        lax.cummin(x, 0),
        lax.cumlogsumexp(x, 1),
        lax.cumsum(x.astype("int32"), 1),
    ),
    "logsumexp": lambda x: (jax.nn.logsumexp(x, 1), jax.nn.softmax(x), jax.nn.log_softmax(x, 0)),
    "moments": lambda x: (x.mean(0), x.std(), jnp.median(x, 1), jnp.linalg.norm(x)),
    "top_k": lambda x: lax.top_k(jnp.round(x), 3),
    "sort": lambda x: (jnp.sort(x, 0), jnp.argsort(jnp.round(x), 1), jnp.sort(x, descending=True)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name):
    check(REDUCTIONS[name], [draws(3, 4)])


def test_sort_of_several_operands():
    check(
        lambda a, b, c: (lax.sort((a, b, c), num_keys=2, dimension=0), lax.sort((b, c), num_keys=1)),
        [integers(6, low=0, high=3), integers(6, low=0, high=3, seed=1), draws(6)],
    )


def test_nan_in_orders():
    x = draws(4)
    x[1, 2] = x[2, 0] = np.nan
    check(lambda x: (jnp.sort(x), lax.top_k(x, 3), jnp.argmax(x), x.max(), jnp.nanmax(x)), [x])


# --- Linear algebra --------------------------------------------------------------------------------------------------

PRODUCTS = {
    "matmul": lambda a, b: a[0] @ b[0],
    "vectors": lambda a, b: a[0, 0] @ b[0, :, 1],
    "stacked": lambda a, b: a @ b,
    "einsum": lambda a, b: jnp.einsum("kij,kjl->lik", a, b),
    "outer": lambda a, b: jnp.einsum("i,j->ij", a[0, 0], b[0, 0]),
    "two_axes": lambda a, b: jnp.tensordot(a, b, axes=[(0, 2), (0, 1)]),
    "integers": lambda a, b: (a * 9).astype("int32") @ (b * 9).astype("int32"),
    "preferred": lambda a, b: lax.dot(
        a[0].astype("float32"), b[0].astype("float32"), preferred_element_type=jnp.float64
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name):
    check(PRODUCTS[name], [draws(2, 3, 4), draws(2, 4, 5)], tolerance=1e-7 if name == "preferred" else 1e-12)


def test_cholesky():
    check(jnp.linalg.cholesky, [spd(3)])
    broken = spd(3)
    broken[2, 0, 0] = -1.0
    check(jnp.linalg.cholesky, [broken])


@pytest.mark.parametrize(
    "options",
    [
        {"left_side": True, "lower": True},
        {"left_side": True, "lower": False, "transpose_a": True},
        {"left_side": False, "lower": True},
        {"left_side": False, "lower": False, "unit_diagonal": True},
        {"left_side": False, "lower": True, "transpose_a": True},
    ],
    ids=str,
)
def test_triangular_solve(options):
    check(lambda a, b: lax.linalg.triangular_solve(a, b, **options), [spd(3), draws(3, 3)])


def test_dense_solvers():
    check(
        lambda a, b: (
            jnp.linalg.solve(a, b),
            jnp.linalg.inv(a),
            *jnp.linalg.slogdet(a),
            jnp.linalg.det(a),
            jax.scipy.linalg.cho_solve((a, True), b),
        ),
        [spd(3), draws(3)],
    )


def test_eigenvectors():
    check(lambda a: (*jnp.linalg.eigh(a), jnp.linalg.eigvalsh(a)), [spd(3)])


def test_singular_values_are_left_to_jax():
    check(lambda a: jnp.linalg.svd(a, compute_uv=False), [draws(3, 2)], needs_jax=True)


# --- Calls and control flow ------------------------------------------------------------------------------------------


@jax.custom_vjp
def cubed(x):
    return x**3


cubed.defvjp(lambda x: (x**3, x), lambda x, t: (3 * x * x * t,))

CALLS = {
    "jit": lambda x, k: jax.jit(lambda y: y * jnp.arange(3.0) + np.arange(3))(x),
    "custom_jvp": lambda x, k: (jax.nn.relu(x), jax.nn.softplus(x), jax.nn.gelu(x)),
    "custom_vjp": lambda x, k: cubed(x),
    "checkpoint": lambda x, k: jax.checkpoint(jnp.sin)(x),
    "grad": lambda x, k: jax.grad(lambda y: jnp.sum(jax.nn.softplus(y) * cubed(y)))(x),
    "cond": lambda x, k: lax.cond(x[0] > 0, lambda y: y, lambda y: -2 * y, x),
    "cond_constants": lambda x, k: lax.cond(x[0] > 0, lambda: (1.0, x), lambda: (k * 1.5, jnp.ones(3))),
    "switch": lambda x, k: lax.switch(k, [lambda y: y, lambda y: y[0] * jnp.ones(3), lambda y: y * k], x),
    "while": lambda x, k: lax.while_loop(lambda c: c[0] < k, lambda c: (c[0] + 1, c[1] * x, c[2]), (0, x, k)),
    "while_total": lambda x, k: lax.while_loop(lambda c: c.sum() < 9, lambda c: c + jnp.abs(x) + 0.5, x),
    "while_known_count": lambda x, k: lax.fori_loop(0, 3, lambda i, y: y * x + i, x),
    "while_inside_vmap": lambda x, k: jax.vmap(
        lambda y: lax.while_loop(
            lambda c: c[0] < 4, lambda c: (c[0] + jnp.abs(y) + 0.3, c[1] * y[None]), (y, jnp.ones(2))
        )
    )(x),
    "scan": lambda x, k: lax.scan(lambda c, y: (c * y + k, (c, y)), 0.5, x),
    "scan_reverse": lambda x, k: lax.scan(lambda c, y: (c + y, c * y), x[0], x, reverse=True),
    "scan_empty": lambda x, k: lax.scan(lambda c, y: (c + y, c * y), x[0], x[:0]),
    "map": lambda x, k: lax.map(lambda y: lax.cond(y > 0, jnp.sin, jnp.cos, y), x),
    "associative_scan": lambda x, k: lax.associative_scan(jnp.multiply, x),
    "constant_output": lambda x, k: (jnp.ones(2), 3.0, x),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    check(CALLS[name], [draws(3), integers(low=-1, high=5)])


def test_one_step_at_a_time():
    """`apply` agrees with evaluating whole jaxprs, for calls as well."""
    x, k = draws(3), integers(low=0, high=4)
    for function in CALLS.values():
        with jax.enable_x64(True):
            jaxpr = jax.make_jaxpr(function)(x[0], k[0])
        slots = dict(zip(jaxpr.jaxpr.invars, [x, k], strict=True)) | {
            v: np.asarray(c)[None] for v, c in zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True)
        }

        def read(atom, slots=slots):
            return np.asarray(atom.val, atom.aval.dtype)[None] if isinstance(atom, core.Literal) else slots[atom]

        for eqn in jaxpr.eqns:
            outputs = numpy_backend.apply(eqn.primitive, eqn.params, [read(v) for v in eqn.invars])
            assert isinstance(outputs, list)
            slots.update(zip(eqn.outvars, outputs, strict=True))
        for got, want in zip(map(read, jaxpr.jaxpr.outvars), numpy_backend.evaluate_jaxpr(jaxpr, [x, k]), strict=True):
            np.testing.assert_array_equal(got, want)


# --- What JAX does instead -------------------------------------------------------------------------------------------


def test_fallback():
    check(lax.clz, [integers(3, low=0)], needs_jax=True)
    assert not numpy_backend.supports(P.clz_p, {})
    assert numpy_backend.supports(P.add_p, {})


def test_fallback_of_several_arguments():
    check(lambda x, y: P.lt_to_p.bind(x, y), [draws(3), draws(3, seed=1)], needs_jax=True)


def test_fallback_inside_a_call():
    check(lambda x: lax.cond(x[0] > 0, lax.clz, lambda y: y + 1, x), [integers(3)], needs_jax=True)


def test_random_keys_pass_through():
    def function(seed):
        keys = jax.random.split(jax.random.key(seed))
        chosen = lax.cond(seed > 50, lambda: keys[0], lambda: keys[1])
        total, _ = lax.scan(lambda total, key: (total + jax.random.key_data(key), None), jnp.zeros(2, "uint32"), keys)
        return jax.random.key_data(chosen), total

    check(function, [integers(low=0, high=100)], needs_jax=True)


def test_fallback_inside_a_trace():
    """Evaluation happens at once even if JAX is tracing something else at the time."""

    @jax.jit
    def traced(x):
        (known,) = numpy_backend.apply(P.clz_p, {}, [np.array([1, 2, 3], np.int32)])
        assert isinstance(known, np.ndarray)
        return x + known

    np.testing.assert_array_equal(traced(0), [31, 30, 30])


# --- Densities -------------------------------------------------------------------------------------------------------

COUNT = integers(low=0, high=5)
SCALE = POSITIVE()
LOC = draws(seed=3)
RATE = POSITIVE(seed=4)
PROBABILITY = draws(low=0.1, high=0.9)

DENSITIES = {
    "Normal": (dist.Normal, [LOC, SCALE], draws()),
    "Uniform": (dist.Uniform, [LOC - 3, LOC + 3], draws()),
    "UniformOutside": (lambda a, b: dist.Uniform(a, b, validate_args=True), [LOC - 1, LOC + 1], draws(low=-4, high=4)),
    "Poisson": (dist.Poisson, [RATE], COUNT),
    "CategoricalLogits": (lambda v: dist.Categorical(logits=v), [draws(6)], COUNT),
    "CategoricalProbs": (lambda v: dist.Categorical(probs=v), [simplex(6)], COUNT),
    "Bernoulli": (dist.Bernoulli, [PROBABILITY], integers(low=0, high=2)),
    "BernoulliLogits": (lambda v: dist.Bernoulli(logits=v), [LOC], integers(low=0, high=2)),
    "Binomial": (lambda p: dist.Binomial(10, p), [PROBABILITY], COUNT),
    "BinomialLogits": (lambda p: dist.Binomial(10, logits=p), [LOC], COUNT),
    "BetaBinomial": (lambda a, b: dist.BetaBinomial(a, b, 9), [RATE, SCALE], COUNT),
    "NegativeBinomial": (dist.NegativeBinomial2, [RATE, SCALE], COUNT),
    "GammaPoisson": (dist.GammaPoisson, [RATE, SCALE], COUNT),
    "Gamma": (dist.Gamma, [RATE, SCALE], POSITIVE(seed=7)),
    "InverseGamma": (dist.InverseGamma, [RATE, SCALE], POSITIVE(seed=7)),
    "Beta": (dist.Beta, [RATE, SCALE], PROBABILITY),
    "Dirichlet": (dist.Dirichlet, [POSITIVE(4)], simplex(4)),
    "StudentT": (dist.StudentT, [RATE, LOC, SCALE], draws()),
    "Cauchy": (dist.Cauchy, [LOC, SCALE], draws()),
    "HalfNormal": (dist.HalfNormal, [SCALE], POSITIVE(seed=7)),
    "HalfCauchy": (dist.HalfCauchy, [SCALE], POSITIVE(seed=7)),
    "LogNormal": (dist.LogNormal, [LOC, SCALE], POSITIVE(seed=7)),
    "Exponential": (dist.Exponential, [RATE], POSITIVE(seed=7)),
    "Laplace": (dist.Laplace, [LOC, SCALE], draws()),
    "Logistic": (dist.Logistic, [LOC, SCALE], draws()),
    "Gumbel": (dist.Gumbel, [LOC, SCALE], draws()),
    "Pareto": (lambda a: dist.Pareto(0.05, a), [RATE], POSITIVE(seed=7)),
    "Weibull": (dist.Weibull, [SCALE, RATE], POSITIVE(seed=7)),
    "Kumaraswamy": (dist.Kumaraswamy, [RATE, SCALE], PROBABILITY),
    "Chi2": (dist.Chi2, [RATE], POSITIVE(seed=7)),
    "VonMises": (dist.VonMises, [LOC, SCALE], draws()),
    "Geometric": (dist.Geometric, [PROBABILITY], COUNT),
    "ZeroInflatedPoisson": (dist.ZeroInflatedPoisson, [PROBABILITY, RATE], COUNT),
    "DiscreteUniform": (lambda b: dist.DiscreteUniform(0, b), [integers(low=5, high=9)], COUNT),
    "OrderedLogistic": (lambda p, c: dist.OrderedLogistic(p, jnp.cumsum(jnp.abs(c))), [LOC, draws(5)], COUNT),
    "Multinomial": (lambda p: dist.Multinomial(total_count=9, probs=p), [simplex(4)], integers(4, low=0, high=4)),
    "TruncatedNormal": (lambda m, s: dist.TruncatedNormal(m, s, low=-3.0, high=4.0), [LOC, SCALE], draws()),
    "TruncatedBelow": (lambda m, s: dist.TruncatedNormal(m, s, low=-3.0), [LOC, SCALE], draws()),
    "Mixture": (
        lambda w, m: dist.MixtureSameFamily(dist.Categorical(w), dist.Normal(m, 1.0)),
        [simplex(3), draws(3)],
        draws(),
    ),
    "MultivariateNormal": (lambda m, c: dist.MultivariateNormal(m, c), [draws(3), spd(3)], draws(3, seed=9)),
    "MultivariateNormalTril": (
        lambda m, c: dist.MultivariateNormal(m, scale_tril=jnp.linalg.cholesky(c)),
        [draws(3), spd(3)],
        draws(3, seed=9),
    ),
    "LowRankMultivariateNormal": (
        lambda m, f: dist.LowRankMultivariateNormal(m, f, jnp.ones(3)),
        [draws(3), draws(3, 2)],
        draws(3, seed=9),
    ),
    "LKJCholesky": (lambda c: dist.LKJCholesky(3, c), [RATE], corr_cholesky(3)),
    "GaussianRandomWalk": (lambda s: dist.GaussianRandomWalk(s, 4), [SCALE], draws(4)),
    "Independent": (lambda m, s: dist.Normal(m, s).to_event(1), [draws(3), SCALE], draws(3, seed=9)),
    "Expanded": (lambda m: dist.Normal(m, 1.0).expand([4]), [LOC], draws(4)),
    "Delta": (dist.Delta, [LOC], LOC.copy()),
}


@pytest.mark.parametrize("name", DENSITIES)
def test_log_prob(name):
    make, parameters, value = DENSITIES[name]
    check(lambda v, *ps: make(*ps).log_prob(v), [value, *parameters], tolerance=1e-11)


@pytest.mark.parametrize(
    ("make", "parameters", "value"),
    [
        (dist.Gamma, [RATE, SCALE], POSITIVE()),
        (dist.Beta, [RATE, SCALE], PROBABILITY),
        (dist.Normal, [LOC, SCALE], draws()),
        (dist.StudentT, [RATE, LOC, SCALE], draws()),
    ],
    ids=["Gamma", "Beta", "Normal", "StudentT"],
)
def test_cdf(make, parameters, value):
    check(lambda v, *ps: make(*ps).cdf(v), [value, *parameters], tolerance=1e-10)


TRANSFORMS = {
    "real": (constraints.real, draws(3)),
    "positive": (constraints.positive, draws(3)),
    "interval": (constraints.interval(-1.0, 3.0), draws(3)),
    "unit_interval": (constraints.unit_interval, draws(3)),
    "greater_than": (constraints.greater_than(2.0), draws(3)),
    "less_than": (constraints.less_than(2.0), draws(3)),
    "softplus_positive": (constraints.softplus_positive, draws(3)),
    "simplex": (constraints.simplex, draws(3)),
    "ordered": (constraints.ordered_vector, draws(3)),
    "positive_ordered": (constraints.positive_ordered_vector, draws(3)),
    "corr_cholesky": (constraints.corr_cholesky, draws(3)),
    "corr_matrix": (constraints.corr_matrix, draws(3)),
    "lower_cholesky": (constraints.lower_cholesky, draws(6)),
    "scaled_unit_lower_cholesky": (constraints.scaled_unit_lower_cholesky, draws(6)),
    "softplus_lower_cholesky": (constraints.softplus_lower_cholesky, draws(6)),
    "positive_definite": (constraints.positive_definite, draws(6)),
    "zero_sum": (constraints.zero_sum(1), draws(3)),
    "l1_ball": (constraints.l1_ball, draws(3)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name):
    constraint, free = TRANSFORMS[name]

    def function(x):
        transform = biject_to(constraint)
        y = transform(x)
        return y, transform.inv(y), transform.log_abs_det_jacobian(x, y)

    check(function, [free], tolerance=1e-11)
