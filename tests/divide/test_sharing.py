"""Work that is divided between several gives the same bits as in one piece, whoever does which part."""

import cloudpickle
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch.conquer.target import PathTarget
from anabranch.conquer.target_state import restored, state_of_target
from anabranch.divide import Constraints, compiled, helped, rebuild, sharing
from anabranch.divide.compiled import SMALLER_BLOCKS
from anabranch.divide.interpret import BLOCK


class Crew:
    """Helpers that do their orders at once, from plain data, with a program and paths of their own; `fails` do not."""

    def __init__(self, number=2, fails=()):
        self.number, self.fails, self.orders, self.paths = number, fails, 0, {}

    def reserve(self, program):
        self.program = cloudpickle.loads(cloudpickle.dumps(program))
        return self.number

    def path(self, choices):
        return self.paths.setdefault(cloudpickle.dumps(choices), rebuild(self.program, choices))

    def begin(self, program, orders):
        self.orders += len(orders)
        done = [cloudpickle.loads(cloudpickle.dumps(each)).done(self) for each in orders]
        return lambda: [None if k in self.fails else each for k, each in enumerate(cloudpickle.loads(
            cloudpickle.dumps(done)))]  # fmt: skip


@pytest.fixture(autouse=True)
def _all_work_is_worth_sharing(monkeypatch):
    monkeypatch.setattr(sharing, "WORTH_SHARING", 0.0)


def mixture(y):
    mu = [ab.sample(f"mu{k}", dist.Uniform(5.0 * k, 5.0 * k + 5)) for k in range(4)]
    clusters = dist.Normal(jnp.stack(mu), 0.5)
    ab.observe("y", dist.MixtureSameFamily(dist.Categorical(jnp.ones(4) / 4), clusters), y)


def process(y):
    scale, length = ab.sample("scale", dist.HalfNormal(1.0)), ab.sample("length", dist.LogNormal(0.0, 1.0))
    x = jnp.linspace(0, 1, len(y))
    covariance = scale * jnp.exp(-((x[:, None] - x) ** 2) / length) + 0.1 * jnp.eye(len(y))
    ab.observe("y", dist.MultivariateNormal(jnp.zeros(len(y)), covariance), y)


def by_python(y):
    """Two paths, with sites that have transforms, vectors, and parameters that depend on others."""
    two = bool(ab.sample("two", dist.Bernoulli(0.5)))
    x = float(ab.sample("x", dist.Normal(0.0, 1.0)))
    s = float(ab.sample("s", dist.Gamma(2.0, 1.0 + x**2)))
    w = np.asarray(ab.sample("w", dist.Dirichlet(np.ones(3))))
    u = float(ab.sample("u", dist.Uniform(x, x + s))) if two else 0.0
    ab.observe("y", dist.Normal(round(x + u, 3) + w[0], 0.5 + s), y)


DATA = np.linspace(0.0, 20.0, 40)


def same(one, other):
    return all(a.tobytes() == b.tobytes() for a, b in zip(one._columns(), other._columns(), strict=True))


@pytest.mark.parametrize("program", [mixture, process])
@pytest.mark.parametrize("by_host", [False, True])
def test_a_population_has_the_same_density_by_several(program, by_host, monkeypatch):
    monkeypatch.setattr(compiled, "SECONDS_BEFORE_SHARING", 0.0)
    monkeypatch.setattr(compiled, "NUMBERS_PER_BLOCK", 2**14)
    (path,) = ab.find_paths(program, DATA, executions=10).paths
    points = np.random.default_rng(0).standard_normal((301, path.dim))
    path.evaluate(points[:1], compile=not by_host)  # its speed is known then
    alone, crew = path.evaluate(points, compile=not by_host), Crew()
    with helped(crew):
        assert same(path.evaluate(points, compile=not by_host), alone)
    assert crew.orders == 2


def test_runs_of_the_interpreter_by_several():
    division = ab.find_paths(by_python, 0.5, executions=10)
    path = max(division.paths, key=lambda path: path.dim)
    points = np.random.default_rng(0).standard_normal((5 * BLOCK + 3, path.dim))
    alone, drawn, crew = path.evaluate(points), path.prior(100, seed=3), Crew()
    with helped(crew):
        assert same(path.evaluate(points), alone)
        again = path.prior(100, seed=3)
        back = path.points(path.values(points))
    assert crew.orders == 6
    assert back.tobytes() == path.points(path.values(points)).tobytes()
    assert again.points.tobytes() == drawn.points.tobytes()
    assert again.log_weights.tobytes() == drawn.log_weights.tobytes()


def test_what_a_helper_leaves_is_done_by_whoever_asked():
    (path,) = ab.find_paths(mixture, DATA, executions=10).paths
    points = np.random.default_rng(0).standard_normal((2_000, path.dim))
    path.evaluate(points[:1], compile=False)
    alone = path.evaluate(points, compile=False)
    with helped(Crew(fails=(0, 1))):
        assert same(path.evaluate(points, compile=False), alone)


def scores(executions):
    return [
        (e.path.signature, e.members.tolist(), e.scores().log_likelihood.tobytes(),
         {key: (values.tobytes(), terms.tobytes()) for key, (values, terms) in e.scores().sites.items()},
         {name: [p.tobytes() for p in e.parameters(name, np.array([0]))[1]] for name in e.values()})
        for e in executions
    ]  # fmt: skip


@pytest.mark.parametrize("given", [False, True])
def test_executions_by_the_interpreter_by_several(given):
    values = {"x": np.linspace(-1, 1, 40), ("u", ()): np.linspace(-2, 2, 40)}
    present = {"x": np.arange(40) % 3 > 0}
    steps = {"x": np.where(np.arange(40) % 2, 0.5, 0.0)}
    constraints = Constraints(values, present, steps, redraw_outside=True) if given else Constraints()
    division = ab.find_paths(by_python, 0.5, executions=10)
    alone = division.send(constraints, 40, seed=5)
    crew = Crew()
    with helped(crew):
        shared = division.send(constraints, 40, seed=5)
    assert crew.orders
    assert scores(shared) == scores(alone)
    for one, other in zip(shared, alone, strict=True):  # a run made elsewhere is made again for what else is asked
        assert {k: v.tobytes() for k, v in one.outcome().values.items()} == {
            k: v.tobytes() for k, v in other.outcome().values.items()
        }


def many():
    n = 0
    while float(ab.sample(f"x{n}", dist.Uniform(0.0, 1.0))) < 0.7:
        n += 1


def test_executions_beyond_the_bound_on_sites_by_several():
    counts = []
    for crew in (None, Crew()):
        division = ab.find_paths(many, executions=5, max_sites=4)
        with helped(crew):
            division.explore(60, seed=1)
        counts.append((division.prior_mass_truncated, division.prior_mass_found, len(division), division.python_runs))
    assert counts[0] == counts[1]
    assert counts[0][0] > 0


def test_the_size_of_blocks_goes_on_where_a_path_is_made_again():
    """It follows from what was computed for padding so far, and another size gives other last bits."""
    (path,) = ab.find_paths(mixture, DATA, executions=10).paths
    target = PathTarget(path)
    (small, *_), backend = SMALLER_BLOCKS, path._backend
    while backend._block_for(1) == backend.block:
        pass
    other = PathTarget(rebuild(path.program, path.choices))
    assert other.path._backend._block_for(1) == backend.block
    restored(other, state_of_target(target), None)
    assert other.path._backend._block_for(1) == small
