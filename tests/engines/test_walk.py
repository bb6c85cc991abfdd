"""Many steps of chains at once, those within a path compiled: the posterior stays what it is, and nothing gets lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch import programs
from anabranch.engines.markov import ChainSteps
from anabranch.engines.path_loop import sites_within
from anabranch.engines.runner import Runner
from anabranch.engines.traces import Traces
from anabranch.engines.walk import Walk


def of_many_kinds(y: float) -> None:
    """Bounded, positive, bound to a sum, with parameters that are random, discrete and not decided on, and a branch."""
    branch = ab.sample("branch", dist.Bernoulli(0.4))
    x = ab.sample("x", dist.Uniform(-1.0, 2.0))
    s = ab.sample("s", dist.Gamma(2.0, 1.0))
    shares = ab.sample("shares", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
    h = ab.sample("h", dist.Normal(x, s))
    count = ab.sample("count", dist.Poisson(1.5))
    if branch:
        x = x + ab.sample("more", dist.Exponential(1.0))
    ab.observe("y", dist.Normal(x + h * shares[0] + 0.3 * count, 0.7), y)


def moving_bound() -> None:
    """The support of one site depends on another."""
    top = ab.sample("top", dist.Uniform(1.0, 2.0))
    ab.sample("below", dist.Uniform(0.0, top))


def guarded() -> None:
    """The path depends on a real number."""
    if ab.sample("x", dist.Normal(0.0, 1.0)) > 0.5:
        ab.sample("more", dist.Normal(0.0, 1.0))


def rarely_possible() -> None:
    """The value that was decided on has a probability of zero at nearly all values of x."""
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    p = jnp.where(x > 3.5, 0.5, 0.0)
    if ab.sample("n", dist.Categorical(probs=jnp.stack([1 - p, p]))):
        ab.sample("more", dist.Normal(0.0, 1.0))


def posterior_draws(runner: Runner, n: int, rng: np.random.Generator) -> Traces:
    """By rejection; the likelihood is at most one."""
    kept: list[Traces] = []
    while sum(map(len, kept)) < n:
        traces = runner.execute(20_000)
        kept.append(traces.take(np.flatnonzero(np.log(rng.random(len(traces))) < traces.log_likelihood)))
    return Traces.joined(kept).take(np.arange(n))


def walk_of(program: Any, *args: Any, n: int, local_share: float, seed: int = 0) -> Walk:
    runner, rng = Runner(ab.find_paths(program, *args), seed), np.random.default_rng(seed)
    session: Any = SimpleNamespace(runner=runner, rng=rng, left=10**9, rate=np.inf)
    return Walk(session, posterior_draws(runner, n, rng), local_share)


def advanced(walk: Walk, steps: int, every: int, first: int = 0) -> ChainSteps:
    walked = ChainSteps.begun(steps, np.ones(len(walk.state), bool), every, first)
    walk.advance(walked)
    return walked


def column(traces: Traces, name: str, entry: int = 0) -> np.ndarray:
    """A number of a site, or -1 where an execution lacks it."""
    [key] = [key for key in traces.values if key[0] == name]
    flat = traces.values[key].reshape(len(traces), -1)[:, entry]
    return np.where(traces.present[key], flat, -1.0)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("local_share", [0.0, pytest.param(0.5, marks=pytest.mark.slow), 1.0])
def test_exact_draws_stay_exact(local_share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Walk, "min_visits", 0)
    walk = walk_of(of_many_kinds, 2.0, n=8_000, local_share=local_share)
    before = walk.state.take(np.arange(8_000))
    walked = advanced(walk, 12, 5)
    after = walk.state
    assert any(walk._loops.values())
    assert (walked.path >= 0).all()
    assert (walked.clock == 12).all()
    for name in ("branch", "x", "s", "shares", "h", "count", "more"):
        a, b = column(before, name), column(after, name)
        for f in (np.asarray, np.square, np.tanh):
            change = f(b) - f(a)
            if name != "branch" or local_share < 1:
                assert change.any(), name
            assert abs(change.mean()) <= 4 * change.std() / np.sqrt(len(change)), (name, f)


def test_what_is_known_of_the_state_is_what_an_execution_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Walk, "min_visits", 0)
    walk = walk_of(of_many_kinds, 2.0, n=40, local_share=0.5)
    advanced(walk, 30, 1)
    again = walk.runner.execute(40, walk.state.given())
    np.testing.assert_array_equal(again.path, walk.state.path)
    np.testing.assert_allclose(again.log_likelihood, walk.state.log_likelihood, rtol=1e-10)
    for key, present in walk.state.present.items():
        np.testing.assert_allclose(again.log_probs[key][present], walk.state.log_probs[key][present], rtol=1e-10)


def test_every_so_many_executions_are_kept_and_they_are_where_the_chains_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Walk, "min_visits", 3)
    walk = walk_of(of_many_kinds, 2.0, n=10, local_share=0.5)
    walked = advanced(walk, 20, 3, first=4)  # the first to be kept is the third
    assert sum(len(chains) for _, _, chains in walked.kept) == 10 * 6
    expected = walked.log_density[2::3]
    for traces, _, chains in walked.kept:
        executed = walk.runner.execute(len(traces), traces.given()).log_density
        for chain, log_density in zip(chains, executed, strict=True):
            assert np.isclose(expected[:, chain], log_density, rtol=1e-9).any()


@pytest.mark.parametrize(
    ("program", "args", "movable"),
    [
        (of_many_kinds, (2.0,), {"x", "s", "shares", "more"}),  # not h, whose parameters are random
        (moving_bound, (), set()),
        (guarded, (), set()),
        (programs.mixture, (programs.mixture_data(),), {"mu"}),
    ],
)
def test_which_sites_can_be_moved_within_their_path(program: Any, args: Any, movable: set[str]) -> None:
    found = {
        path.sites[number].name.rstrip("0123456789")
        for path in ab.find_paths(program, *args, executions=50)
        for number in sites_within(path)
    }
    assert found == movable


def test_no_loop_where_the_prior_hardly_leads_to_the_path() -> None:
    division = ab.find_paths(rarely_possible, executions=20_000)
    assert {path.description: len(sites_within(path)) for path in division} == {"n = 0": 1, "n = 1": 0}


def test_a_chain_at_the_edge_of_a_support_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """There it has no coordinates, so that the program is executed, for any of its sites."""
    monkeypatch.setattr(Walk, "min_visits", 0)
    walk = walk_of(of_many_kinds, 2.0, n=50, local_share=0.0)
    walk.state.values["s", ()][:] = np.inf  # as after a step that was too long
    walk.state = walk.runner.execute(50, walk.state.given())
    walked = advanced(walk, 5, 1)
    assert (walked.clock == 5).all()


def test_the_same_seed_gives_the_same_answer_with_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Walk, "min_visits", 2)
    monkeypatch.setattr(Walk, "min_steps", 10)
    walks: list[Walk] = []
    advance = Walk.advance
    monkeypatch.setattr(Walk, "advance", lambda walk, steps: (walks.append(walk), advance(walk, steps))[1])

    def answer() -> Any:
        engine = ab.engines.RandomWalkMH(chains=10)
        posterior = ab.infer(of_many_kinds, 2.0, engine=engine, budget=1_000, seed=3)
        assert any(walks.pop()._loops.values())
        return posterior.paths, [estimate.points for estimate in posterior.solutions]

    (paths, points), (paths_again, points_again) = answer(), answer()
    assert paths.equals(paths_again)
    for one, other in zip(points, points_again, strict=True):
        np.testing.assert_array_equal(one, other)
