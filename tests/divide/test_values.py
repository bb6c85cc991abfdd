"""Whatever Python, NumPy and JAX do with a value may be asked of a traced one, and gives what plain NumPyro gives.

Each case is a program with the number of its paths and, where some stay variables of a path, its discrete sites that
no decision fixes. Decisions on a random real do not make paths of their own: executions that meet the same sites with
the same values fixed are one path, however often a real number was asked about.
"""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import lax
from numpyro import handlers
from numpyro.distributions import constraints, transforms
from numpyro.infer.reparam import LocScaleReparam, TransformReparam

import anabranch as ab
from anabranch.language import deterministic, factor, observe, sample
from helpers import agrees_with_numpyro, named_log_density, some_rows

pytestmark = pytest.mark.one_in(6)


def verify(program, paths, *args, latent=(), interpreted=False, of_each=1, executions=200, reference=None):
    """Divide, count the paths, and compare the density of some executions of each with NumPyro's."""
    division = ab.find_paths(program, *args, executions=executions)
    assert len(division) == paths
    assert division.prior_mass_found <= 1 + 1e-9
    for path in division:
        assert path.interpreted == interpreted
        assert {site.name for site in path.sites if site.discrete and site.value is None} == set(latent)
    agrees_with_numpyro(division, *args, of_each=of_each, reference=reference)
    return division


# A whole number -----------------------------------------------------------------------------------------------------

N01 = dist.Normal(0.0, 1.0)
TABLE = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]
with jax.enable_x64(True):
    VECTOR = jnp.array([0.5, 1.5, 2.5])


def by_match(k):
    match k:
        case 0:
            return 1.0
        case 1 | 5:
            return 2.0
        case n if n > 1:
            return 3.0
    return 4.0


def by_countdown(k):
    n = 0.0
    while k > 0:
        k -= 1
        n += 1.5
    return n


def by_recursion(k):
    return 1.0 if k == 0 else k * by_recursion(k - 1)


def by_membership(k):
    return (
        1.0 * (k in [0, 2]) + 2.0 * (k in (1, 3)) + 4.0 * (k in {1, 2}) + 8.0 * (k in {0: 0}) + 16.0 * (k in range(2))
    )


def by_try(k):
    try:
        return [1.0, 2.0][k]
    except IndexError:
        return 3.0


def by_dictionary(k):
    counts = {k: 1.0}
    counts[k] = counts.get(k, 0.0) + 1.0
    return counts[k] + {0: 1.0, 1: 2.0}.get(k, 3.0)


# Each is asked about K = 0, 1 or 2: a question about it fixes its value, and so makes three paths.
ASKS_A_COUNT = {
    "if": lambda k: 1.0 if k else 2.0,
    "comparison": lambda k: 1.0 if k > 1 else 2.0,
    "equality": lambda k: 1.0 if k == 1 else 2.0,
    "inequality": lambda k: 1.0 if k != 1 else 2.0,
    "chain": lambda k: 1.0 if 0 < k < 2 else 2.0,
    "and": lambda k: 1.0 if k > 0 and k < 2 else 2.0,
    "or": lambda k: 1.0 if k == 0 or k > 1 else 2.0,
    "or of values": lambda k: k or 5.0,
    "and of values": lambda k: k and 5.0,
    "not": lambda k: 1.0 if not k else 2.0,
    "assert": lambda k: 1.0 if bool(k) is (int(k) > 0) else np.nan,
    "int": lambda k: int(k) * 1.5,
    "float": lambda k: float(k) * 1.5,
    "float of half": lambda k: float(k / 2),
    "complex": lambda k: complex(k).real,
    "index": lambda k: operator.index(k) * 1.5,
    "range": lambda k: sum(i + 0.5 for i in range(k)),
    "range from": lambda k: sum(i + 0.5 for i in range(k, 4)),
    "range by": lambda k: sum(i + 0.5 for i in range(0, 4, k + 1)),
    "list": lambda k: [1.0, 3.0, 4.0][k],
    "list from the end": lambda k: [1.0, 3.0, 4.0][-k],
    "list of lists": lambda k: TABLE[k][2 - k],
    "tuple": lambda k: (1.0, 3.0, 4.0)[k],
    "slice of a list": lambda k: sum([1.0, 3.0, 4.0][:k]),
    "slice of an array": lambda k: VECTOR[:k].sum(),
    "slice from": lambda k: VECTOR[k:].sum(),
    "slice by": lambda k: VECTOR[:: k + 1].sum(),
    "slice of a NumPy array": lambda k: np.array([1.0, 3.0, 4.0])[:k].sum(),
    "element of a NumPy array": lambda k: np.array([1.0, 3.0, 4.0])[k],
    "row of a NumPy array": lambda k: np.array(TABLE)[k].sum(),
    "repeated list": lambda k: sum([1.5] * int(k)),
    "repeated string": lambda k: len(k * "ab") * 1.5,
    "string": lambda k: "abc"[k] == "b" and 1.5,
    "jnp.zeros": lambda k: 1.0 + jnp.zeros(k).size,
    "jnp.zeros of a tuple": lambda k: 1.0 + jnp.zeros((k,)).sum(),
    "jnp.ones": lambda k: jnp.ones((k, 2)).sum(),
    "jnp.full": lambda k: jnp.full(k, 0.5).sum(),
    "jnp.arange": lambda k: jnp.arange(k).sum() * 0.5,
    "jnp.arange from": lambda k: jnp.arange(1, k + 1).sum() * 0.5,
    "jnp.eye": lambda k: jnp.eye(k).sum(),
    "jnp.linspace": lambda k: jnp.linspace(0.0, 1.0, k).sum(),
    "jnp.repeat": lambda k: jnp.repeat(VECTOR, k).sum(),
    "jnp.tile": lambda k: jnp.tile(VECTOR, k).sum(),
    "jnp.reshape": lambda k: jnp.arange(12.0).reshape(k + 1, -1)[0].sum(),
    "jnp.broadcast_to": lambda k: jnp.broadcast_to(VECTOR, (k, 3)).sum(),
    "jnp.split": lambda k: jnp.split(VECTOR, [k])[0].sum(),
    "one_hot": lambda k: jax.nn.one_hot(1, k).sum(),
    "jnp.roll": lambda k: jnp.roll(VECTOR, k)[0],
    "axis": lambda k: jnp.arange(24.0).reshape(2, 3, 4).sum(axis=k).ravel()[1],
    "np.arange": lambda k: np.arange(k).sum() * 0.5,
    "np.zeros": lambda k: np.zeros(k).size * 0.5,
    "np.ones": lambda k: np.ones((2, k)).sum(),
    "np.asarray": lambda k: np.asarray(k) * 0.5,
    "np.where": lambda k: np.where(k > 1, 1.0, 2.0),
    "math.sqrt": lambda k: math.sqrt(k),
    "math.factorial": lambda k: math.factorial(k),
    "math.comb": lambda k: math.comb(5, k),
    "math.exp": lambda k: math.exp(k),
    "count of a list": lambda k: [0, 1, 1].count(k) * 0.5,
    "index in a list": lambda k: [2, 0, 1].index(k) * 0.5,
    "match": by_match,
    "while": by_countdown,
    "recursion": by_recursion,
    "try": by_try,
    "f-string": lambda k: len(f"{k:03d}") + (1.5 if f"{k}" == "1" else 0.0),
    "format": lambda k: float("{:>4}".format(k)),  # noqa: UP032
    "percent": lambda k: float("%d" % k),  # noqa: UP031
    "str": lambda k: float(str(k)),
    "repr-free print": lambda k: print(k) or int(k) * 0.5,
    "item": lambda k: k.item() * 0.5,
    "tolist": lambda k: k.tolist() * 0.5,
    "round to": lambda k: round(1.2345, k),
    "sum of comprehension": lambda k: sum(0.5 for i in range(3) if i < k),
    "enumerate": lambda k: sum(x for i, x in enumerate([1.0, 2.0, 4.0]) if i == k),
    "max": lambda k: max(k, 1) * 0.5,
    "min": lambda k: min(k, 1) * 0.5,
    "sorted": lambda k: sorted([1, k, 0])[1] * 0.5,
    "any": lambda k: 1.0 if any([False, k > 1]) else 2.0,
    "all": lambda k: 1.0 if all([True, k > 1]) else 2.0,
    "isclose": lambda k: 1.0 if jnp.isclose(k, 1.0) else 2.0,
    "to the power": lambda k: [1.0, 2.0, 5.0][k**2 % 3],
    "string key": lambda k: {"0": 1.0, "1": 2.0, "2": 4.0}[str(k)],
    "getattr": lambda k: getattr(np.array([1.0, 2.0]), ["min", "max", "sum"][k])(),
}

# These only compute with K: it stays a variable of the one path.
COMPUTES_WITH_A_COUNT = {
    "arithmetic": lambda k: 3 * k - k / 2 + k**2 - (-k) + 7 // (k + 1) + k % 2,
    "int and float": lambda k: 0.5 * k + 1,
    "reflected": lambda k: 2.0**k + 1.0 / (1 + k) + 5 % (k + 1),
    "bool arithmetic": lambda k: 1.5 * (k > 1) + (k == 0) * 2.0 + ((k > 0) & (k < 2)) + ~(k > 1),
    "bits": lambda k: (k << 1) + (k | 4) + (k ^ 1) + (k & 1) + ~k,
    "divmod": lambda k: divmod(k + 3, 2)[0] + 0.5 * divmod(k + 3, 2)[1],
    "abs": lambda k: abs(k - 1),
    "pow": lambda k: pow(k, 2) + pow(2, k),
    "round": lambda k: round(k / 4.0, 1),
    "gather": lambda k: VECTOR[k],
    "gather a row": lambda k: jnp.array(TABLE)[k, 1],
    "gather from the end": lambda k: VECTOR[-k],
    "take": lambda k: jnp.take(VECTOR, k),
    "where": lambda k: jnp.where(k > 1, 1.0, 2.0),
    "select": lambda k: lax.select(k > 1, 1.0, 2.0),
    "cond": lambda k: lax.cond(k > 1, lambda: 1.0, lambda: 2.0),
    "switch": lambda k: lax.switch(k, [lambda: 1.0, lambda: 2.0, lambda: 5.0]),
    "while_loop": lambda k: lax.while_loop(lambda s: s[0] > 0, lambda s: (s[0] - 1, s[1] + 1.5), (k, 0.0))[1],
    "fori_loop": lambda k: lax.fori_loop(0, k, lambda i, s: s + 1.5 + i, 0.0),
    "one_hot": lambda k: jax.nn.one_hot(k, 3) @ VECTOR,
    "set": lambda k: jnp.zeros(3).at[k].set(1.5).sum(),
    "add": lambda k: VECTOR.at[k].add(1.5) @ VECTOR,
    "dynamic_slice": lambda k: lax.dynamic_slice(VECTOR, (k,), (1,))[0],
    "mask": lambda k: jnp.where(jnp.arange(3) < k, VECTOR, 0.0).sum(),
    "astype": lambda k: k.astype(float) * 0.5,
    "attributes": lambda k: k * (k.ndim + k.size + k.itemsize) + len(k.shape),
    "isinstance": lambda k: 1.0 * k if isinstance(k, jax.Array) else np.nan,
    "is None": lambda k: np.nan if k is None else 1.0 * k,
    "sum builtin": lambda k: sum([k, 1.5, k]),
    "math.prod": lambda k: math.prod([k, 1.5, k]),
    "gammaln": lambda k: jax.scipy.special.gammaln(k + 1.0),
    "NumPy ufuncs": lambda k: np.sqrt(k) + np.maximum(k, 1) + np.add(k, 0.5),
    "NumPy scalar": lambda k: np.float64(0.5) * k + np.int32(2) + k * np.float32(0.5),
    "NumPy array": lambda k: (np.array([0.5, 1.0]) * k + k / np.array([2.0, 4.0])).sum(),
    "vmap": lambda k: jax.vmap(lambda x: x * k)(VECTOR).sum(),
    "random with a constant key": lambda k: k * jax.random.normal(jax.random.key(3)),
    "random with an old key": lambda k: k * jax.random.uniform(jax.random.PRNGKey(3), (2,)).sum(),
    "random key of a value": lambda k: jax.random.uniform(jax.random.PRNGKey(k)),
    "fold_in": lambda k: jax.random.uniform(jax.random.fold_in(jax.random.key(0), k)),
    "split keys": lambda k: k * sum(jax.random.normal(key) for key in jax.random.split(jax.random.key(1), 2)),
    "split old keys": lambda k: k * sum(jax.random.normal(key) for key in jax.random.split(jax.random.PRNGKey(1))),
    "random shape": lambda k: k * jax.random.normal(jax.random.key(1), (2, 2)).sum(),
}


# JAX's arrays have no hash: NumPyro is given a plain number for these.
HASHES_A_COUNT = {
    "hash": lambda k: hash(k) * 1.5,
    "dictionary": by_dictionary,
    "membership": by_membership,
    "set": lambda k: 0.5 * len({k, 1, 5}),
    "static argument": lambda k: jax.jit(lambda n: 1.5 * n, static_argnums=0)(k),
    "lru_cache": functools.lru_cache(lambda n: 1.5 if n else 2.5),
}


def of_count(function):
    def program():
        k = sample("K", dist.DiscreteUniform(0, 2))
        observe("y", dist.Normal(function(k), 1.0), 0.7)

    return program


@pytest.mark.parametrize("label", ASKS_A_COUNT)
def test_question_about_a_count(label):
    verify(of_count(ASKS_A_COUNT[label]), 3, executions=50)


@pytest.mark.parametrize("label", HASHES_A_COUNT)
def test_hash_of_a_count(label):
    function = HASHES_A_COUNT[label]
    reference = of_count(lambda k: function(int(k)))
    verify(of_count(function), 3, executions=50, reference=reference)


@pytest.mark.parametrize("label", COMPUTES_WITH_A_COUNT)
def test_computation_with_a_count(label):
    verify(of_count(COMPUTES_WITH_A_COUNT[label]), 1, latent=["K"], of_each=3, executions=50)


@pytest.mark.parametrize("label", ["range", "f-string", "np.arange", "list", "jnp.zeros"])
def test_question_about_a_count_that_is_not_to_split(label):
    """The answers are guards then, and the count stays a variable."""
    division = ab.find_paths(of_count(ASKS_A_COUNT[label]), executions=50, split={"K": False})
    assert len(division) == 1
    assert not any(path.interpreted for path in division)
    assert [site.value for site in division.paths[0].sites] == [None]
    agrees_with_numpyro(division, of_each=3)


# A real number ------------------------------------------------------------------------------------------------------


def by_sign(x):
    if x > 1:
        return x
    return -x


def by_while(x):
    n = 0
    while x > 1:
        x = x - 1
        n += 1
    return n + x


# Asked about a real between 0 and 3. All meet the same sites: one path.
ASKS_A_REAL = {
    "if": lambda x: x if x > 1 else 2.0,
    "branch": by_sign,
    "truth": lambda x: 1.0 * x if x else 2.0,
    "chain": lambda x: x if 0.5 < x < 2 else 2.0,
    "and": lambda x: x if x > 0.5 and x < 2 else 2.0,
    "or": lambda x: x if x < 0.5 or x > 2 else 2.0,
    "not": lambda x: x if not x > 1 else 2.0,
    "bool": lambda x: x * bool(x > 1),
    "int": lambda x: int(x) + x,
    "floor": lambda x: math.floor(x) + x,
    "ceil": lambda x: math.ceil(x) + x,
    "range of floor": lambda x: sum(x + i for i in range(int(jnp.floor(x)))) + 0 * x,
    "index by bool": lambda x: [1.0, x][int(x > 1)],
    "index by floor": lambda x: [1.0, x, 2 * x][jnp.floor(x).astype(int)],
    "dictionary by bool": lambda x: {True: x, False: 1.0}[bool(x > 1)],
    "max": lambda x: max(x, 1.0),
    "min": lambda x: min(1.0, x, 2 - x),
    "sorted": lambda x: sorted([1.0, x, 2 - x])[1],
    "while": by_while,
    "match guard": lambda x: x if jnp.sign(x - 1) == 1 else 1.0,
    "isnan": lambda x: 0.0 if jnp.isnan(x) else x,
    "count of a comparison": lambda x: jnp.zeros(int((x > VECTOR).sum())).size * x,
}

COMPUTES_WITH_A_REAL = {
    "arithmetic": lambda x: 3 * x - x / 2 + x**2 - (-x) + x // 1 + x % 0.7 + 2.0**x,
    "round": lambda x: round(x) + round(x, 1),
    "divmod": lambda x: divmod(x, 0.7)[0] + 0.5 * divmod(x, 0.7)[1],
    "abs": lambda x: abs(x - 1),
    "pow": lambda x: pow(x, 2) + pow(2, x) + pow(x, 0.5),
    "where": lambda x: jnp.where(x > 1, x, 2.0),
    "clip": lambda x: jnp.clip(x, 0.5, 1.0),
    "maximum": lambda x: jnp.maximum(x, 1.0),
    "sort": lambda x: jnp.sort(jnp.array([x, 1.0, 2 - x]))[1],
    "array of": lambda x: jnp.array([x, 1.0]).sum() + jnp.asarray(x) + jnp.stack([x, 2 * x])[1],
    "cond": lambda x: lax.cond(x > 1, jnp.sin, jnp.cos, x),
    "scan": lambda x: lax.scan(lambda s, t: (s * x + t, s), 0.0, VECTOR)[0],
    "associative_scan": lambda x: lax.associative_scan(jnp.add, x * VECTOR)[-1],
    "map": lambda x: lax.map(lambda t: t * x, VECTOR).sum(),
    "while_loop": lambda x: lax.while_loop(lambda s: s < 5, lambda s: s + x + 0.1, 0.0),
    "vmap": lambda x: jax.vmap(lambda t: jnp.exp(-t * x))(VECTOR).sum(),
    "grad": lambda x: jax.grad(lambda t: jnp.sin(t) * t)(x),
    "hessian": lambda x: jax.hessian(lambda t: t**4)(x),
    "jacfwd": lambda x: jax.jacfwd(lambda t: t * VECTOR)(x).sum(),
    "vmap of grad": lambda x: jax.vmap(jax.grad(lambda t: jnp.sin(t) * x))(VECTOR).sum(),
    "value_and_grad of a closure": lambda x: sum(jax.value_and_grad(lambda t: t**2 * x)(1.5)),
    "checkpoint": lambda x: jax.checkpoint(jnp.sin)(x),
    "softplus": lambda x: jax.nn.softplus(x),
    "relu": lambda x: jax.nn.relu(x - 1),
    "logsumexp": lambda x: jax.nn.logsumexp(x * VECTOR),
    "softmax": lambda x: jax.nn.softmax(x * VECTOR)[0],
    "xlogy": lambda x: jax.scipy.special.xlogy(x, x),
    "special functions": lambda x: jax.scipy.special.erf(x) + jax.scipy.special.digamma(x + 1),
    "cumsum": lambda x: jnp.cumsum(x * VECTOR)[1],
    "linear algebra": lambda x: jnp.linalg.solve(jnp.eye(2) * (1 + x), jnp.ones(2)).sum(),
    "cholesky": lambda x: jnp.linalg.cholesky(jnp.eye(2) + x)[1, 1],
    "einsum": lambda x: jnp.einsum("i,j->", x * VECTOR, VECTOR),
    "interp": lambda x: jnp.interp(x, VECTOR, VECTOR**2),
    "searchsorted": lambda x: VECTOR[jnp.searchsorted(jnp.array([1.0, 2.0]), x)],
    "float32 array": lambda x: (x * np.array([0.1, 0.2], np.float32)).sum(),
    "float32 of JAX": lambda x: (x * jnp.array([0.1, 0.2], jnp.float32)).sum(),
    "NumPy ufuncs": lambda x: np.sin(x) + np.exp(-x) * np.maximum(x, 1.0) + np.sqrt(x),
    "NumPy on the left": lambda x: (np.array([0.5, 2.0]) * x + np.float64(1.0) - np.array(2.0) / (1 + x)).sum(),
    "NumPy matrix": lambda x: (np.array([[1.0, 2.0], [3.0, 4.0]]) @ jnp.stack([x, x])).sum(),
    "comparison": lambda x: 1.5 * (x > 1) + (x <= 2),
    "sum builtin": lambda x: sum([x, 1.5, x]),
    "isinstance": lambda x: x if isinstance(x, jax.Array) else np.nan,
    "copy": lambda x: x.copy() + x.real + jnp.copy(x),
    "pytree": lambda x: jax.tree.map(lambda t: 2 * t, {"a": x, "b": [x, 1.0]})["b"][0],
    "random scaled": lambda x: x * jax.random.normal(jax.random.key(0)),
    "random by logits": lambda x: jax.random.categorical(jax.random.key(0), x * VECTOR),
}


def of_real(function):
    def program():
        x = sample("x", dist.Uniform(0.0, 3.0))
        observe("y", dist.Normal(function(x), 1.0), 0.7)

    return program


@pytest.mark.parametrize("label", ASKS_A_REAL | COMPUTES_WITH_A_REAL)
def test_real(label):
    division = verify(of_real((ASKS_A_REAL | COMPUTES_WITH_A_REAL)[label]), 1, executions=50)
    assert len(division.paths[0].recordings) == 1 or label in ASKS_A_REAL


# A vector -----------------------------------------------------------------------------------------------------------


def by_unpacking(v):
    a, b, c = v
    first, *rest = v
    return a + 2 * b + 4 * c + first + sum(rest)


OF_A_VECTOR = {
    "length": lambda v: len(v) + v.sum() + v.shape[0] + v.size,
    "iteration": lambda v: sum(x**2 for x in v),
    "unpacking": by_unpacking,
    "enumerate": lambda v: sum(i * x for i, x in enumerate(v)),
    "zip": lambda v: sum(a * b for a, b in zip(v, [1.0, 2.0, 3.0], strict=True)),
    "sum": lambda v: sum(v),
    "star": lambda v: (lambda a, b, c: a - b + c)(*v),
    "list": lambda v: list(v)[1],
    "reversed": lambda v: next(reversed(v)),
    "map": lambda v: sum(map(jnp.exp, v)),
    "element": lambda v: v[0] + v[-1] + v[jnp.array(1)] + v[np.int64(2)],
    "slices": lambda v: v[1:].sum() + v[::-1][0] + v[..., 0] + v[None, :].sum(),
    "fancy": lambda v: v[jnp.array([0, 2])].sum() + v[np.array([True, False, True])].sum() + v[[0, 1],].sum(),
    "methods": lambda v: v.mean() + v.max() + v.T @ v + v.reshape(3, 1)[2, 0] + v.cumsum()[1] + v.argmax(),
    "at": lambda v: v.at[1].set(2.0).sum() + v.at[:2].mul(3.0).sum(),
    "concatenate": lambda v: jnp.concatenate([v, v[:1], jnp.zeros(0)]).sum(),
    "min": lambda v: min(v),
    "max by key": lambda v: max(v, key=lambda x: (x - 0.1) ** 2),
    "sorted": lambda v: sorted(v)[1],
    "any": lambda v: 1.0 if any(x > 0 for x in v) else v[0],
    "all": lambda v: 1.0 if all(x > 0 for x in v) else v[0],
    "any of an array": lambda v: 1.0 if (v > 0).any() else v[0],
    "jnp.all": lambda v: 1.0 if jnp.all(v > 0) else v[0],
    "argmax": lambda v: ["a", "bb", "ccc"][int(jnp.argmax(v))].__len__() * v[0],
    "filtered": lambda v: sum(x for x in v if x > 0) + 0 * v[0],
    "boolean mask": lambda v: v[v > 0].sum(),
    "nonzero": lambda v: jnp.nonzero(v > 0)[0].size * v[0],
    "vdot": lambda v: jnp.vdot(v, VECTOR) + v @ VECTOR + VECTOR @ v + np.ones(3) @ v,
    "vmap": lambda v: jax.vmap(lambda x: x * v.sum())(v).sum(),
    "grad": lambda v: jax.grad(lambda u: jnp.sum(u**3))(v).sum(),
    "jacobian": lambda v: jnp.linalg.det(jax.jacobian(lambda u: u**2 + u.sum())(v)),
    "scan over": lambda v: lax.scan(lambda s, x: (0.5 * s + x, None), 0.0, v)[0],
    "logsumexp": lambda v: jax.nn.logsumexp(v, axis=0),
}


def of_vector(function):
    def program():
        v = sample("v", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
        observe("y", dist.Normal(function(v), 1.0), 0.7)

    return program


@pytest.mark.parametrize("label", OF_A_VECTOR)
def test_vector(label):
    verify(of_vector(OF_A_VECTOR[label]), 1, of_each=2)


# Several discrete values --------------------------------------------------------------------------------------------

OF_TRUTH_VALUES = {
    # How many paths, which depends on what Python asks.
    "gather": (1, lambda z: jnp.array([0.5, 2.0])[z].sum()),
    "sum": (1, lambda z: z.sum() * 0.5),
    "where": (1, lambda z: jnp.where(z, VECTOR[:2], -1.0).sum()),
    "element": (4, lambda z: 1.5 if z[0] else 2.5),
    "loop": (4, lambda z: sum(1.5 + j for j in range(2) if z[j])),
    "iteration": (4, lambda z: sum(1.5 if bit else 0.5 for bit in z)),
    "any": (4, lambda z: 1.5 if z.any() else 0.5),
    "size": (4, lambda z: jnp.zeros(z.sum()).size * 0.5),
    "tuple": (4, lambda z: {(0, 0): 0.5, (1, 0): 1.5}.get(tuple(z.tolist()), 2.5)),
    "mask": (4, lambda z: VECTOR[:2][z == 1].sum()),
    "NumPy": (4, lambda z: np.asarray(z) @ np.array([1.0, 2.0])),
    "NumPy gather": (4, lambda z: np.array([1.0, 2.0])[z].sum()),
    "text": (4, lambda z: float("".join(f"{bit}" for bit in z))),
}


@pytest.mark.parametrize("label", OF_TRUTH_VALUES)
def test_vector_of_truth_values(label):
    paths, function = OF_TRUTH_VALUES[label]

    def program():
        z = numpyro.sample("z", dist.Bernoulli(0.4 * jnp.ones(2)).to_event(1))
        numpyro.sample("y", dist.Normal(function(z), 1.0), obs=0.7)

    verify(program, paths, latent=["z"] if paths == 1 else [])


def test_only_the_sites_asked_about_are_fixed():
    def program():
        a, b, c = (sample(name, dist.Bernoulli(0.5)) for name in "abc")
        either = a | b
        mean = 1.0 if either else 2.0
        observe("y", dist.Normal(mean + c, 1.0), 0.7)

    verify(program, 4, latent=["c"])


def test_short_circuit_asks_no_more_than_python():
    def program():
        a, b = (sample(name, dist.Bernoulli(0.5)) for name in "ab")
        x = sample("x", dist.Normal(0.0, 1.0)) if a and b else 0.0
        observe("y", dist.Normal(x, 1.0), 0.7)

    division = ab.find_paths(program)
    # Where a is 0, b stays a variable.
    assert sorted(path.dim for path in division) == [0, 1, 1]
    agrees_with_numpyro(division)


def test_question_about_a_count_and_a_real_together():
    def program():
        k = sample("K", dist.DiscreteUniform(1, 3))
        x = sample("x", dist.Uniform(0.0, 1.0))
        z = sample("z", dist.Normal(0.0, 1.0)) if k * x > 1 else 0.5
        n = int(k * x)
        observe("y", dist.Normal(z + n + x, 1.0), 0.7)

    # For K = 1 the product is never above one.
    verify(program, 5)


# Programs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    program: object
    paths: int
    latent: tuple[str, ...] = ()


CASES: dict[str, Case] = {}


def case(paths=1, latent=()):
    def enter(program):
        CASES[program.__name__] = Case(program, paths, tuple(latent))
        return program

    return enter


def count(low=0, high=2):
    return sample("K", dist.DiscreteUniform(low, high))


def seen(value, data=0.7):
    observe("y", dist.Normal(value, 1.0), data)


@case(3)
def expand_by_a_count():
    seen(sample("x", dist.Normal(0.0, 1.0).expand([count(11, 13)]).to_event(1)).sum())


@case(3)
def plate_of_a_count():
    with numpyro.plate("parts", count(1, 3)):
        x = numpyro.sample("x", dist.Gamma(2.0, 1.0))
    seen(x.sum())


@case(3)
def sample_shape_of_a_count():
    seen(numpyro.sample("x", dist.Normal(0.0, 1.0), sample_shape=(count(),)).sum())


@case(3)
def empty_arrays():
    k = count()
    x = sample("x", dist.Normal(jnp.zeros(k), 1.0).to_event(1))
    y = jnp.concatenate([x, jnp.zeros(0)])
    seen(y.sum() + jnp.prod(x) + sum(y))
    observe("none", dist.Normal(jnp.zeros(0), 1.0), np.zeros(0))


@case(2, latent=["z"])
def sizes_of_distributions():
    k = count(2, 3)
    w = sample("w", dist.Dirichlet(jnp.ones(k)))
    z = sample("z", dist.Categorical(w))
    c = sample("c", dist.LKJCholesky(k, 1.5))
    seen(w[0] + jnp.where(z > 0, 1.0, c[-1, 0]))


@case(2)
def distribution_by_a_branch():
    family = dist.Normal if sample("heavy", dist.Bernoulli(0.5)) else functools.partial(dist.StudentT, 3.0)
    seen(sample("x", family(0.0, 1.0)))


@case(1, latent=["z", "w"])
def count_as_a_parameter():
    z = sample("z", dist.Poisson(3.0))
    w = sample("w", dist.Binomial(z, 0.5))
    observe("y", dist.Normal(w, 1.0), 0.7)


@case(3, latent=["z"])
def matrix_site():
    x = numpyro.sample("x", dist.Normal(jnp.zeros((2, 3)), jnp.ones((2, 3))))
    z = numpyro.sample("z", dist.Categorical(jnp.ones((2, 3)) / 3))
    w = numpyro.sample("w", dist.Dirichlet(jnp.ones((2, 3))))
    seen(x[1].sum() + x[:, 0] @ w[:, 1] + w[jnp.arange(2), z].sum() + [0.0, 1.0, 2.0][count()])


@jax.jit
def helper(x, y=1.0):
    return jnp.sin(x) * y


@jax.jit
def helper_of_many(tree):
    return {"sum": tree["a"] + tree["b"].sum(), "rest": helper(tree["a"], 2.0)}


@case(2)
def jitted_helpers():
    x = sample("x", dist.Normal(0.0, 1.0))
    total = helper(x) + helper(x, 2.0) + helper(2 * x, y=x) + helper(0.3)
    parts = helper_of_many({"a": x, "b": jnp.ones(3) * x})
    if x > 0:
        total = total + helper(sample("z", dist.Normal(0.0, 1.0)))
    for _ in range(3):
        total = helper(total)
    seen(total + parts["sum"] + parts["rest"])


@jax.custom_jvp
def clipped(x):
    return jnp.clip(x, -1.0, 1.0)


@clipped.defjvp
def clipped_jvp(primals, tangents):
    return clipped(*primals), tangents[0]


@jax.custom_vjp
def doubled(x, scale):
    return 2 * x * scale


doubled.defvjp(lambda x, scale: (doubled(x, scale), scale), lambda scale, g: (2 * g * scale, None))


@case()
def custom_derivatives():
    x = sample("x", dist.Normal(0.0, 2.0))
    seen(clipped(x) + doubled(x, 1.5) + doubled(clipped(x * VECTOR), 0.5).sum())


class Model:
    """Holds traced values in attributes, and makes closures and generators over them."""

    def __init__(self):
        self.level = sample("level", dist.Normal(0.0, 1.0))
        self.parts = []

    def __call__(self, k):
        self.parts += [self.level * k] * int(k)
        return lambda y: y + sum(self)

    def __iter__(self):
        for part in self.parts:
            yield part + self.level


@case(3)
def objects_closures_generators():
    model = Model()
    seen(model(count())(0.5))


@case(2)
def scopes():
    def part():
        return numpyro.sample("x", dist.Normal(0.0, 1.0)) + sample(dist.Normal(0.0, 1.0))

    with handlers.scope(prefix="a"):
        a = part()
    with handlers.scope(prefix="b", divider="."):
        b = part() if numpyro.sample("present", dist.Bernoulli(0.5)) else 0.0
    seen(a + b)


def submodel():
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", 3):
        return numpyro.sample("x", dist.Normal(mu, 2.0))


@case()
def conditioned():
    seen(handlers.condition(submodel, {"mu": 0.4})().sum())


@case()
def conditioned_on_a_vector():
    seen(handlers.condition(submodel, {"x": np.array([0.1, 0.2, 0.3])})().sum())


@case()
def masked():
    x = submodel()
    with handlers.mask(mask=np.array([True, False, True])):
        numpyro.sample("some", dist.Normal(x, 1.0), obs=np.array([0.5, np.nan, 1.5]))
    with handlers.mask(mask=False):
        numpyro.sample("never", dist.Normal(x.sum(), 1.0), obs=1.0)
    seen(x.sum())


@case()
def scaled():
    with handlers.scale(scale=2.5), handlers.scale(scale=2.0):
        x = submodel()
        numpyro.sample("z", dist.Normal(x.sum(), 1.0), obs=0.3)
    seen(x.sum())


@case()
def scaled_by_element():
    with handlers.scale(scale=np.array([1.0, 2.0, 3.0])), numpyro.plate("data", 3):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("z", dist.Normal(x, 1.0), obs=np.array([0.1, 0.2, 0.3]))


@case()
def scaled_by_a_random_value():
    power = sample("power", dist.Beta(2.0, 2.0))
    with handlers.scale(scale=power):
        seen(sample("x", dist.Normal(0.0, 1.0)))


@case()
def reparametrised():
    config = {"mu": LocScaleReparam(0.0), "x": LocScaleReparam(0.5), "t": TransformReparam()}
    with handlers.reparam(config=config):
        x = submodel()
        t = numpyro.sample("t", dist.TransformedDistribution(dist.Normal(x.sum(), 1.0), transforms.ExpTransform()))
    seen(t)


@case()
def intervened():
    seen(handlers.do(submodel, data={"mu": 2.0})().sum())


@case()
def blocked_observation():
    with handlers.block(hide=["hidden"]):
        numpyro.sample("hidden", dist.Normal(0.0, 1.0), obs=3.0)
    seen(submodel().sum())


@case()
def seeded_inside():
    seen(handlers.seed(submodel, rng_seed=0)().sum())


def parameter_of_numpyro():
    scale = numpyro.param("scale", 1.5, constraint=constraints.positive)
    seen(sample("x", dist.Normal(0.0, scale)))


@case()
def lifted():
    handlers.lift(parameter_of_numpyro, prior={"scale": dist.Gamma(2.0, 1.0)})()


@case()
def obs_mask():
    data, mask = np.array([0.3, 0.0, 0.5]), np.array([True, False, True])
    x = numpyro.sample("x", dist.Normal(jnp.zeros(3), 1.0), obs=data, obs_mask=mask)
    seen(x.sum())


@case()
def nested_plates():
    with numpyro.plate("outer", 2, dim=-2):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        with numpyro.plate("inner", 3, dim=-1):
            b = numpyro.sample("b", dist.Normal(a, 1.0))
            numpyro.sample("y", dist.Normal(b, 1.0), obs=np.arange(6.0).reshape(2, 3))
    with numpyro.plate_stack("stack", [2, 2]):
        numpyro.sample("c", dist.Normal(b.sum(), 1.0))


@case()
def broadcast_observations():
    x = sample("x", dist.Normal(0.0, 1.0))
    v = sample("v", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
    observe("many", dist.Normal(x, 1.0), np.array([0.1, 0.2]))
    observe("one", dist.Normal(v, 1.0), 0.5)
    observe("rows", dist.Normal(v, 1.0), np.arange(6.0).reshape(2, 3))
    observe("event", dist.Normal(v, 1.0).to_event(1), np.arange(6.0).reshape(2, 3))
    observe("column", dist.Normal(v[:, None], 1.0), np.arange(2.0))
    with numpyro.plate("data", 4):
        numpyro.sample("plated", dist.Normal(x, 1.0), obs=0.2)


@case(1, latent=["z"])
def mixtures():
    weights = dist.Categorical(jnp.array([0.3, 0.7]))
    m = sample("m", dist.MixtureSameFamily(weights, dist.Normal(jnp.array([0.0, 3.0]), 1.0)))
    g = sample("g", dist.MixtureGeneral(weights, [dist.Normal(m, 1.0), dist.StudentT(3.0)]))
    p = sample("p", dist.MixtureSameFamily(weights, dist.Gamma(jnp.array([1.0, 3.0]), 1.0)))
    z = sample("z", dist.MixtureSameFamily(weights, dist.Poisson(jnp.array([1.0, 3.0]))))
    seen(m + g + p + z)


@case()
def constrained_vectors():
    w = sample("w", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
    c = sample("c", dist.LKJCholesky(3, 2.0))
    ordered = dist.TransformedDistribution(dist.Normal(jnp.zeros(3), 1.0).to_event(1), transforms.OrderedTransform())
    o = sample("o", ordered)
    m = sample("m", dist.MultivariateNormal(w, scale_tril=c))
    seen(m.sum() + o[1])


@case()
def random_supports():
    a = sample("a", dist.Gamma(3.0, 1.0))
    u = sample("u", dist.Uniform(0.0, a))
    v = sample("v", dist.Uniform(jnp.array([-1.0, 0.0]) * a, jnp.array([1.0, 2.0]) * a).to_event(1))
    t = sample("t", dist.TruncatedNormal(0.0, 1.0, low=u, high=u + a))
    left = sample("left", dist.TruncatedNormal(0.0, 1.0, low=a))
    p = sample("p", dist.Pareto(a, 3.0))
    b = sample("b", dist.TransformedDistribution(dist.Beta(2.0, 2.0), transforms.AffineTransform(a, 2.0)))
    seen(u + v.sum() + t + left + p + b)


@case()
def many_supports():
    s = sample("s", dist.HalfCauchy(1.0))
    b = sample("b", dist.Beta(2.0, 3.0))
    u = sample("u", dist.Uniform(-2.0, 5.0))
    angle = sample("angle", dist.VonMises(0.0, 2.0))
    log = sample("log", dist.LogNormal(0.0, 1.0))
    neg = sample("neg", dist.TransformedDistribution(dist.Gamma(2.0, 1.0), transforms.AffineTransform(0.0, -1.0)))
    walk = sample("walk", dist.GaussianRandomWalk(0.5, 4))
    seen(s + b + u + angle + log + neg + walk.sum())


@case()
def improper():
    x = numpyro.sample("x", dist.ImproperUniform(constraints.real, (), ()))
    s = numpyro.sample("s", dist.ImproperUniform(constraints.positive, (2,), ()))
    numpyro.sample("y", dist.Normal(x, s), obs=np.array([0.1, 0.7]))


@case()
def factors():
    x = sample("x", dist.Normal(0.0, 1.0))
    factor("vector", -jnp.abs(x * VECTOR))
    factor("number", -0.5)
    numpyro.factor("of numpyro", -(x**2))
    deterministic("square", x**2)


with jax.enable_x64(True):
    GLOBAL = dist.MultivariateNormal(jnp.zeros(2), covariance_matrix=jnp.array([[2.0, 0.5], [0.5, 1.0]]))


@case(2)
def distribution_made_outside():
    """Its properties are computed when first used and kept: by one run for all others."""
    x = sample("x", GLOBAL)
    if x[0] > 0:
        x = x + sample("z", GLOBAL)
    seen(x.sum() + GLOBAL.precision_matrix[0, 0] + GLOBAL.log_prob(x))


@case()
def prior_density_inside():
    x = sample("x", dist.Normal(0.0, 1.0))
    d = dist.Gamma(jnp.exp(x), 1.0)
    factor("f", d.log_prob(1.5) + d.mean + dist.kl_divergence(dist.Normal(x, 1.0), dist.Normal(0.0, 1.0)))


@case()
def double_precision_inside():
    """A thousand steps of a logistic map: no precision less than double gives this sum."""
    x = sample("x", dist.Uniform(0.4, 0.41))
    assert x.dtype == np.float64
    assert jnp.zeros(2).dtype == jnp.asarray(1.5).dtype == np.float64
    for _ in range(20):
        x = 3.9 * x * (1 - x)
    seen(1e3 * x)


@pytest.mark.parametrize("name", CASES)
def test_program(name):
    case = CASES[name]
    verify(case.program, case.paths, latent=case.latent)


def kinds_of_data(as_given=lambda data: data):
    x = sample("x", dist.Beta(2.0, 2.0))
    observe("bool", dist.Bernoulli(x), True)
    observe("NumPy bool", dist.Bernoulli(x), np.array([True, False]))
    observe("float for a count", dist.Poisson(x), 3.0)
    observe("int for a real", dist.Normal(x, 1.0), 3)
    observe("JAX", dist.Normal(x, 1.0), as_given(jnp.array([1.0, 2.0])))
    observe("single precision", dist.Normal(x, 1.0), as_given(np.array([0.1, 0.2], np.float32)))
    observe("small", dist.Poisson(x), as_given(np.array([1, 2], np.uint8)))
    observe("computed", dist.Normal(0.0, 1.0), 2 * x - 1)


def test_kinds_of_data():
    """NumPyro 0.20 computes in the precision of the data: the same numbers in double precision are the reference."""
    verify(kinds_of_data, 1, reference=lambda: kinds_of_data(lambda data: np.asarray(data, np.float64)))


@pytest.mark.parametrize("name", ["jitted_helpers", "custom_derivatives", "random_supports", "mixtures"])
def test_compiled_is_as_on_the_host(name):
    for path in ab.find_paths(CASES[name].program, executions=50):
        points = path.prior(4).points
        host, compiled = path.evaluate(points, compile=False), path.evaluate(points)
        for part in ("log_prior", "log_likelihood", "log_jacobian"):
            assert getattr(compiled, part).dtype == getattr(host, part).dtype == np.float64
            np.testing.assert_allclose(getattr(compiled, part), getattr(host, part), rtol=1e-9, atol=1e-9)
        assert compiled.guard.all()


def test_gradients_of_operators():
    """Operators on a scalar take a short way to the graph: each must know its derivative."""

    def program():
        x = sample("x", N01)
        y = 2 * x - x / 3 + x * x - (1 - x) / (4 + x**2) + (-x) * 0.5 + abs(x) + x**3 + 2.0**x
        observe("y", dist.Normal(jnp.where(x > 0, y, y + 1), 1.0), 0.7)

    [path] = ab.find_paths(program, executions=5).paths
    points, step = np.array([[-0.7], [0.4]]), 1e-6
    _, gradient = path.differentiate(points, 0.5)

    def tempered(at):
        evaluation = path.evaluate(at, compile=False)
        return evaluation.log_prior + 0.5 * evaluation.log_likelihood

    np.testing.assert_allclose(
        gradient[:, 0], (tempered(points + step) - tempered(points - step)) / (2 * step), rtol=1e-6
    )


def test_interpreted_executions_differ():
    def program():
        x = float(sample("x", N01))
        observe("y", dist.Normal(x, 1.0), 0.7)

    groups = ab.find_paths(program, executions=5).explore(20, seed=1)
    assert len({float(values["x"]) for _, values in some_rows(groups, of_each=20)}) == 20


WORDS = {
    "if": (lambda x: 1.0 if x > 1 else 2.0, {"x > 1", "x <= 1"}),
    "not": (lambda x: 1.0 if not x > 1 else 2.0, {"x > 1", "x <= 1"}),
    "call": (lambda x: 1.0 if jnp.isfinite(x) else 2.0, {"jnp.isfinite(x)"}),
    "int": (lambda x: int(x), {"int(x): 0", "int(x): 1", "int(x): 2"}),
}


def by_flag(x):
    flag = x > 1
    while not flag:
        flag = x < 5
    return x


WORDS["while"] = by_flag, {"flag", "not flag"}


@pytest.mark.parametrize("label", WORDS)
def test_words_of_a_decision(label):
    function, expected = WORDS[label]
    [path] = ab.find_paths(of_real(function), executions=50).paths
    said = {text.rpartition(" (")[0] for decisions in path.decisions for text in decisions}
    assert said == expected


def test_delta_is_no_variable():
    def program():
        x = sample("x", dist.Normal(0.0, 1.0))
        twice = numpyro.sample("twice", dist.Delta(2 * x, log_density=0.3))
        seen(twice + x)

    [path] = ab.find_paths(program)
    assert path.addresses == ("x",)
    density = named_log_density(path, np.array([[0.4]]))
    expected = [dist.Normal(0.0, 1.0).log_prob(0.4), 0.3, dist.Normal(1.2, 1.0).log_prob(0.7)]
    assert density[0] == pytest.approx(float(sum(expected)), rel=1e-6)


def test_a_site_that_the_program_substitutes_is_no_variable():
    """NumPyro counts its density at that value, which is not drawn."""

    def program():
        with handlers.substitute(data={"mu": 0.4}):
            seen(submodel().sum())

    [path] = ab.find_paths(program)
    assert path.addresses == ("x",)
    agrees_with_numpyro(ab.find_paths(program))


def test_deterministics_and_results():
    def program():
        k = count(1, 2)
        x = sample("x", dist.Normal(jnp.zeros(k), 1.0).to_event(1))
        deterministic("twice", 2 * x)
        deterministic("constant", 3.0)
        return {"k": k, "sum": x.sum(), "label": f"k{k}", "pair": (x, None)}

    for path in ab.find_paths(program):
        points = path.prior(3).points
        [outcome] = path.outcomes(points)
        k = path.sites[0].value.item()
        np.testing.assert_allclose(outcome.deterministics["twice"], 2 * points)
        assert np.all(outcome.deterministics["constant"] == 3.0)
        np.testing.assert_allclose(outcome.result["sum"], points.sum(axis=1))
        assert np.all(outcome.result["k"] == k)
        assert outcome.result["label"] == f"k{k}"
        np.testing.assert_allclose(outcome.result["pair"][0], points)


def test_error_of_a_value_is_python_s_own():
    """What Python refuses for a value, it refuses for a traced one with the same kind of error."""
    refused = {
        "if v": (of_vector(lambda v: 1.0 if v else 2.0), ValueError),
        "int(v)": (of_vector(lambda v: int(v)), TypeError),
        "hash(v)": (of_vector(lambda v: hash(v)), TypeError),
        "list[x]": (of_real(lambda x: [1.0, 2.0][x]), TypeError),
        "range(x)": (of_real(lambda x: range(x)), TypeError),
        "len(x)": (of_real(lambda x: len(x)), TypeError),
        "iter(x)": (of_real(lambda x: list(x)), TypeError),
        "unpack": (of_vector(lambda v: (lambda a, b: a)(*v)), TypeError),
        "list[5]": (of_count(lambda k: [1.0][k + 5]), IndexError),
        "key": (of_count(lambda k: {7: 1.0}[k]), KeyError),
        "assert": (of_count(operator.attrgetter("nothing")), AttributeError),
        "assignment": (of_vector(lambda v: operator.setitem(v, 0, 1.0)), TypeError),
    }
    for label, (program, error) in refused.items():
        with pytest.raises(error) as raised:
            ab.find_paths(program, executions=20)
        assert type(raised.value) is error, label


# Settings -----------------------------------------------------------------------------------------------------------


SETTINGS = {
    "double precision": lambda: jax.enable_x64(True),
    "single precision": lambda: jax.enable_x64(False),
    "no jit": jax.disable_jit,
    "no NaN": lambda: jax.debug_nans(True),
    "checks for leaks": jax.checking_leaks,
    "no promotion of ranks": lambda: jax.numpy_rank_promotion("raise"),
    "validation": lambda: numpyro.validation_enabled(True),
}


def everything_computed():
    """What a path says of a point, by each way of asking it."""
    division = ab.find_paths(of_real(lambda x: helper(x) if x > 1 else jax.nn.softplus(x)), executions=20)
    [path] = division.paths
    points = path.prior(3).points
    evaluation, gradient = path.differentiate(points)
    host = path.evaluate(points, compile=False)
    values = path.values(points)["x"]
    return np.concatenate([points.ravel(), values, evaluation.log_density, gradient.ravel(), host.log_density])


@pytest.fixture(scope="module")
def computed_before():
    return everything_computed()


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_user_s_settings_do_not_matter_and_stay(setting, computed_before):
    with SETTINGS[setting]():
        before = dict(jax.config.values), jax.config.jax_enable_x64, jnp.ones(1).dtype
        np.testing.assert_allclose(everything_computed(), computed_before, rtol=1e-12)
        assert (dict(jax.config.values), jax.config.jax_enable_x64, jnp.ones(1).dtype) == before


def test_settings_stay_after_an_error():
    def program():
        sample("x", dist.Normal(0.0, 1.0))
        raise RuntimeError("no")

    before = jnp.ones(1).dtype
    with pytest.raises(RuntimeError):
        ab.find_paths(program)
    assert jnp.ones(1).dtype == before
    # Nothing of the run is left in NumPyro's stack of handlers either.
    assert handlers.trace(handlers.seed(submodel, 0)).get_trace()["x"]["value"].dtype == before
