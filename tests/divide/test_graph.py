"""The order in which a recorded graph is evaluated again."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax
from numpy.testing import assert_array_equal

import anabranch as ab
from anabranch.divide.graph import Graph, Node, alias


class Step:
    """A step that is no equation, as a site is one."""

    def __init__(self, inputs, outputs):
        self.inputs, self.outputs = inputs, outputs


def record(graph, *inputs, count=1):
    """An equation whose types do not matter."""
    from anabranch.divide import graph as module

    if hasattr(module, "Type") or "types" in vars(graph):
        return graph.record(lax.add_p, {}, list(inputs), [((), np.dtype(float))] * count)
    return graph.record(lax.add_p, {}, list(inputs), count)
