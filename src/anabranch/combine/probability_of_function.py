"""The posterior probability of each value of a function of a draw: the mean of the indicator of the value.

With v the value, P(v) = E[1(f = v)], by the draws of each path and with the error of `expectation` (`shares`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from anabranch import errors
from anabranch.combine.blocks import blocks_of
from anabranch.combine.evidence import Evidence
from anabranch.combine.parts import MIN_DRAWS, Function, Part, called, sampled
from anabranch.combine.probability import Probabilities, key_of
from anabranch.combine.shares import probabilities_of
from anabranch.combine.solution import Solution

__all__ = ["probability_of_function"]

MAX_VALUES = 1_000
"""Different real values above which a function is taken to be no discrete one; as where every second draw has its
own."""


def probability_of_function(
    solutions: Sequence[Solution], evidence: Evidence, f: Function, max_draws: int
) -> Probabilities:
    """The probability of each value, the most probable first; None where f is None, or a draw lacks what it reads."""
    parts, keys = [], []
    for k, sample in sampled(solutions, evidence.weights, max_draws):
        solution = solutions[k]
        everywhere = np.ones(len(sample[0]), bool)
        parts.append(Part(k, solution, evidence.weights[k], *sample, everywhere, everywhere.astype(float)))
        keys.append(called(f, solution, solution.points[sample[0]], {}, _key))
    real = {key for each in keys for key in each if _is_real(key)}
    if len(real) > min(MAX_VALUES, max(MIN_DRAWS, sum(map(len, keys)) / 2)):
        raise errors.NotDiscrete(
            f"the function has {len(real):,} different values: a single one has no probability",
            remedy="Return text, a whole number or a truth value, or use expectation for a mean",
        )
    means, sds = probabilities_of(parts, keys, blocks_of(solutions), evidence.doubtful_share)
    return Probabilities(dict(sorted(means.items(), key=lambda item: -item[1])), sds)


def _key(value: Any) -> Any:
    """The value as a number, a tuple or a label, in a form that is equal for the same values."""
    return value if isinstance(value, tuple) else key_of(value)


def _is_real(key: Any) -> bool:
    """Whether a value is a number that is not whole, or has such a part."""
    if isinstance(key, tuple):
        return any(map(_is_real, key))
    return isinstance(key, float) and not key.is_integer()
