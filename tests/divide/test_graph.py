"""The order in which a recorded graph is evaluated again."""

import itertools

import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax

import anabranch as ab
from anabranch.divide.graph import Graph, Node, alias, evaluate

SCALAR = None  # the types of the nodes do not matter here


class Draw:
    """A step that is no equation, as a site is one."""

    def __init__(self, inputs, output):
        self.inputs, self.outputs = inputs, (output,)


def add(graph, *inputs):
    [node] = graph.record(lax.add_p, {}, inputs, [SCALAR])
    return node


def test_nodes_are_numbered_as_recorded():
    graph = Graph()
    a, b = graph.input(SCALAR), graph.input(SCALAR)
    c, d = graph.record(lax.sort_p, {}, [a, b], [SCALAR, SCALAR])
    assert [a, b, c, d] == [0, 1, 2, 3]
    assert all(isinstance(node, Node) for node in (a, b, c, d))
    assert len(graph) == 4
    assert graph.producers[:2] == [None, None]
    assert graph.producers[c] is graph.producers[d]


def test_a_step_comes_after_what_it_needs():
    graph = Graph()
    a = graph.input(SCALAR)
    b = add(graph, a, 1.0)
    c = add(graph, b, a)
    d = add(graph, c, b)
    unused = add(graph, a, a)
    for target in ([d], [d, b], [b, d], [d, d]):
        steps = graph.schedule(target, {a: 1.0})
        assert {step.outputs[0] for step in steps} == {b, c, d}
        assert [step.outputs[0] for step in steps].index(d) == 2
        assert steps == sorted(steps, key=lambda step: step.outputs[0])
    assert unused not in {step.outputs[0] for step in steps}


def test_what_is_there_is_not_computed_again():
    graph = Graph()
    a = graph.input(SCALAR)
    b = add(graph, a, 1.0)
    c = add(graph, b, 2.0)
    assert [step.outputs for step in graph.schedule([c], {b: 5.0})] == [[c]]
    assert graph.schedule([c], {c: 0.0}) == []
    assert graph.schedule([3.0, np.ones(2), 7], {}) == []


def test_an_equation_of_several_results_is_one_step():
    graph = Graph()
    a = graph.input(SCALAR)
    low, high = graph.record(lax.sort_p, {}, [a, 0.5], [SCALAR, SCALAR])
    assert len(graph.schedule([low, high], {a: 1.0})) == 1
    total = add(graph, low, high)
    assert [step.outputs[0] for step in graph.schedule([total], {a: 1.0})] == [low, total]


def test_an_input_without_a_value():
    graph = Graph()
    a = graph.input(SCALAR)
    b = add(graph, a, 1.0)
    with pytest.raises(KeyError, match="node 0 is an input without a value"):
        graph.schedule([b], {})


def test_sources_say_where_inputs_come_from():
    graph = Graph()
    a, b = graph.input(SCALAR), graph.input(SCALAR)
    shifted = add(graph, a, 1.0)
    total = add(graph, b, shifted)
    sources = {a: Draw([0.0], a), b: Draw([shifted], b)}
    assert graph.schedule([total], {}, sources) == [
        sources[a], graph.producers[shifted], sources[b], graph.producers[total],
    ]  # fmt: skip
    # One that is there is not drawn, and neither is what only it needed.
    assert graph.schedule([total], {b: 1.0, shifted: 2.0}, sources) == [graph.producers[total]]


def test_alias_hands_its_value_on():
    graph = Graph()
    a, b = graph.input(SCALAR), graph.input(SCALAR)
    c = add(graph, a, b)
    env = {}
    sources = {a: alias(a, np.array(2.0)), b: alias(b, a)}
    evaluate(graph.schedule([c], env, sources), env)
    assert env[c] == [4.0]


def test_long_chain():
    """A loop of many thousand turns is a chain of as many equations: no recursion may follow it."""
    graph = Graph()
    node = first = graph.input(SCALAR)
    for _ in range(20_000):
        node = add(graph, node, 1.0)
    steps = graph.schedule([node], {first: 0.0})
    assert [step.outputs[0] for step in steps] == list(range(1, 20_001))
    env = {first: np.zeros(3)}
    evaluate(steps, env)
    assert (env[node] == 20_000).all()


def test_long_chain_of_sources():
    graph = Graph()
    nodes = [graph.input(SCALAR) for _ in range(20_000)]
    sources = {node: Draw([before], node) for before, node in itertools.pairwise(nodes)}
    assert len(graph.schedule([nodes[-1]], {nodes[0]: 0.0}, sources)) == 19_999


def test_a_long_random_walk_is_divided():
    def walk():
        position = 0.0
        for i in range(1500):
            position = position + ab.sample(f"step_{i}", dist.Normal(0.0, 1.0))
        ab.observe("end", dist.Normal(position, 1.0), 3.0)
        if position > 0:
            ab.sample("sign", dist.Normal(0.0, 1.0))

    division = ab.find_paths(walk, executions=20)
    assert sorted(path.dim for path in division) == [1500, 1501]
    [group] = [group for group in division.explore(20, seed=1) if group.path.dim == 1500]
    values = group.values()
    points = group.path.points(values)
    position = sum(values[f"step_{i}"] for i in range(1500))
    likelihood = -0.5 * (3.0 - position) ** 2 - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(group.path.evaluate(points, compile=False).log_likelihood, likelihood, rtol=1e-9)
