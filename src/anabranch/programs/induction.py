"""Function induction, section 7.3: the shape of a function from a grammar, and its coefficients.

e -> x | x * x | sin(a e) | a e + b e, with at most three levels and no plus directly below a plus.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import anabranch as ab

__all__ = ["function_induction", "function_induction_data", "function_induction_test_data"]

IDENTITY, SQUARE, SINE, PLUS = range(4)


def function_induction(x: Any, y: Any) -> Any:
    """Observe y at the first points of x with noise 0.5; the function's values at all of them are returned."""
    f = expression(1, None)
    ab.observe("y", dist.Normal(f(x[: len(y)]), 0.5), y)
    return f(x)


def expression(depth: int, parent: int | None) -> Callable[[Any], Any]:
    """A random function. As in the paper's listing, x * x and a lone x draw a coefficient that they do not use."""
    if depth == 3:
        rules = [0.5, 0.5]
    elif parent == PLUS:
        rules = [0.35, 0.35, 0.3]
    else:
        rules = [0.3, 0.3, 0.2, 0.2]
    rule = ab.sample(dist.Categorical(np.array(rules)))
    if rule == IDENTITY:
        if parent is None:
            ab.sample("unused", dist.Normal(0.0, 1.0))
        return lambda x: x
    if rule == SQUARE:
        ab.sample(dist.Normal(0.0, 1.0))
        return lambda x: x * x
    a = ab.sample(dist.Normal(0.0, 1.0))
    if rule == SINE:
        inner = expression(depth + 1, SINE)
        return lambda x: jnp.sin(a * inner(x))
    b = ab.sample(dist.Normal(0.0, 1.0))
    left = expression(depth + 1, PLUS)
    right = expression(depth + 1, PLUS)
    return lambda x: a * left(x) + b * right(x)


def function_induction_data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """30 points of -x + 2 sin(5 x^2) with noise 0.5, for x between -1.5 and 1.5."""
    return _points(np.random.default_rng(seed), 1.5)


def function_induction_test_data(seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """30 points of the same function that were held out, for x between -2 and 2: some call for extrapolation."""
    return _points(np.random.default_rng(seed), 2.0)


def _points(rng: np.random.Generator, limit: float) -> tuple[np.ndarray, np.ndarray]:
    x = np.sort(rng.uniform(-limit, limit, 30))
    return x, -x + 2 * np.sin(5 * x * x) + 0.5 * rng.standard_normal(30)
