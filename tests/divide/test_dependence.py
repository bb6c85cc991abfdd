"""Which elements depend on which coordinates, against changing one coordinate at a time."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from anabranch.divide.dependence import Dependence, Scopes, Value

N = 6
TABLE = np.random.default_rng(0).normal(size=(4, 3))
MATRIX = np.diag([1.0, -2.0, 0.5, 3.0, 1.5], 1)
KEEP = np.array([True, False, True, True, False, True])


def scan_of(z):
    return lax.scan(lambda carry, x: (x, carry + 2 * x), z[0], z[1:])[1]


def while_of(z):
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 1.5), (0, 1.0 * z))[1]


EXACT = {
    "elementwise": lambda z: jnp.sin(1.0 * z) + 2,
    "neighbours": lambda z: z[1:] * z[:-1],
    "gather": lambda z: jnp.asarray(TABLE)[z],
    "gather at constant indices": lambda z: z[np.array([3, 0, 3])],
    "reduction": lambda z: jnp.stack([z[:2].sum(), z[2:].max(), jnp.argmin(z[1:3])]),
    "stack, reshape, transpose": lambda z: jnp.stack([z, z[::-1]]).T.reshape(3, 4),
    "where": lambda z: jnp.where(KEEP, z, 0),
    "a factor of zero": lambda z: z * jnp.asarray(KEEP.astype(float)),
    "where, of the values": lambda z: jnp.where(z[:3] > 1, z[3:], 7),
    "pad": lambda z: jnp.pad(z[2:4], 1),
    "matrix with zeros": lambda z: MATRIX @ (1.0 * z),
    "outer product": lambda z: jnp.outer(z[:2], z[4:]),
    "scan": scan_of,
    "a call": lambda z: jax.jit(lambda a, b: a * b)(z[:3], z[3:]),
    "a derivative of its own": lambda z: jax.nn.relu(1.0 * z) + jax.nn.softplus(1.0 * z),
    "log-softmax of rows": lambda z: jax.nn.log_softmax(jnp.asarray(TABLE)[z], axis=-1),
    "update at constant indices": lambda z: jnp.zeros(4, z.dtype).at[np.array([1, 3])].set(z[:2]),
    "nothing": lambda z: jnp.zeros(3) + z.shape[0],
}
SAFE = {
    "cumulative": lambda z: jnp.cumsum(z),
    "sort": lambda z: jnp.sort(z[:4]),
    "while": while_of,
    "an index into values": lambda z: z[2:][z[0] % 4],
    "a slice at random": lambda z: lax.dynamic_slice(z, (z[0],), (2,)),
    "cholesky": lambda z: jnp.linalg.cholesky(jnp.eye(2) * (1.0 + z[0] ** 2) + 0.1 * z[1]),
    "cond": lambda z: lax.cond(z[0] > 1, lambda a: a * 2.0, lambda a: a + 1.0, 1.0 * z[1:3]),
    "scatter at random": lambda z: jnp.zeros(4, z.dtype).at[z[0]].add(z[1]),
}


def stated(function) -> list[set[int]]:
    with jax.enable_x64(True):
        jaxpr = jax.make_jaxpr(function)(np.zeros(N, int))
    scopes = Scopes()
    (out,) = Dependence(scopes).run(jaxpr, [Value((N,), scopes.singletons(np.arange(N)))])
    return [set(scopes.members[number]) for number in out.array.ravel()]


def observed(function) -> list[set[int]]:
    """The coordinates whose change changes each element, at some of many values."""
    rng, found = np.random.default_rng(1), None
    with jax.enable_x64(True):
        at = jax.jit(lambda z: jnp.ravel(function(z)))
        for _ in range(60):
            z = rng.integers(0, 4, size=N)
            base = np.asarray(at(z))
            found = found or [set() for _ in base]
            for i in range(N):
                other = z.copy()
                other[i] = (z[i] + rng.integers(1, 4)) % 4
                changed = ~np.isclose(np.asarray(at(other)), base, rtol=1e-12, atol=0, equal_nan=True)
                for element in np.flatnonzero(changed):
                    found[element].add(i)
    return found or []


@pytest.mark.parametrize("function", EXACT.values(), ids=EXACT)
def test_exactly_what_matters(function):
    assert stated(function) == observed(function)


@pytest.mark.parametrize("function", SAFE.values(), ids=SAFE)
def test_no_dependence_is_missed(function):
    assert all(seen <= said for seen, said in zip(observed(function), stated(function), strict=True))


def test_unions_along_axes():
    scopes = Scopes()
    numbers = scopes.singletons(np.arange(6).reshape(2, 3))
    assert [scopes.members[n] for n in scopes.over(numbers, [0])] == [(0, 3), (1, 4), (2, 5)]
    assert scopes.members[int(scopes.over(numbers, [0, 1]))] == (0, 1, 2, 3, 4, 5)
    assert scopes.over(numbers, []) is numbers
    assert scopes.members[scopes.number([4, 1, 4])] == (1, 4)
