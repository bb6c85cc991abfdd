"""RMH within one path (paper, sections 3.1 and 6.1): Metropolis-within-Gibbs on a fixed set of variables.

A step chooses one of the variables, draws it from its prior or moves it locally, and runs the program with that value
and all others as they are: the single-site move of `engines.RandomWalkMH`. Sites whose value the path fixes are not
chosen (appendix E). γ_k is zero outside the path, so that a move that leaves it is refused; any other is accepted

    with the probability of Metropolis and Hastings,   or, if greedy, only if γ_k(x') > γ_k(x)       (appendix F).
"""

import numpy as np
from numpy.random import Generator

from anabranch.allocate import PathRecord
from anabranch.conquer import PathTarget
from anabranch.divide import Constraints, Executions, Path
from anabranch.engines.markov import accepted
from anabranch.engines.runner import Runner
from anabranch.engines.single_site import LocalMoves, log_acceptance, propose
from anabranch.engines.traces import Traces

__all__ = ["LocalRMH", "learned_moves", "started"]


class LocalRMH:
    """RMH restricted to the path of a record, whose evaluations are counted there."""

    def __init__(self, runner: Runner, moves: LocalMoves, record: PathRecord, rng: Generator) -> None:
        self.runner, self.moves, self.record, self.rng = runner, moves, record, rng
        self.fixed = [(site.name, site.shape) for site in record.path.sites if site.columns is None]

    def steps(self, chains: Traces, count: int, *, greedy: bool = False) -> Traces:
        """The chains after so many steps of each."""
        for _ in range(count if self.record.path.dim else 0):
            chains = self._step(chains, greedy)
        return chains

    def _step(self, chains: Traces, greedy: bool) -> Traces:
        n = len(chains)
        proposal = propose(self.runner, chains, self.moves, self.rng, {key: np.ones(n, bool) for key in self.fixed})
        arrivals = self.runner.send(n, proposal.given)
        proposed = self.runner.traces(arrivals, n)
        self.record.target.charge(n)
        if greedy:
            moves = proposed.log_density > chains.log_density
        else:
            moves = accepted(log_acceptance(self.runner, chains, proposed, proposal, arrivals), self.rng)
        return chains.replaced(moves & (proposed.path == chains.path), proposed)


def started(runner: Runner, record: PathRecord, n: int, rng: Generator) -> Traces:
    """Up to n of the executions that found a path; prior draws within it if these are not known."""
    assert isinstance(record.target, PathTarget)
    found = [executions.values(n) for executions in record.target.found_by]
    if not found:
        found = [record.path.values(record.target.prior(n, rng).points)]
    values = {name: np.concatenate([each[name] for each in found])[:n] for name in found[0]}
    size = min(n, len(next(iter(values.values()))))
    traces = runner.execute(size, Constraints(values))
    record.target.charge(size)
    return traces.take(np.flatnonzero(traces.path == runner.number(record.path)))


def learned_moves(executions: list[Executions], share: float) -> LocalMoves:
    """Local moves of each site in units of its standard deviation over executions from the prior."""
    seen: dict[tuple[str, tuple[int, ...]], list[np.ndarray]] = {}
    for group in executions:
        if group.path is not None:
            points = group.path.coordinates(group.values())
            for site in group.path.sites:
                if site.columns is not None:
                    seen.setdefault((site.name, site.shape), []).append(points[:, site.columns])
    known = {}
    for key, parts in seen.items():
        columns = np.concatenate([part for part in parts if part.shape[1] == parts[0].shape[1]])
        scale = columns[np.isfinite(columns).all(axis=1)].std(axis=0) if len(columns) > 1 else np.zeros(1)
        known[key] = np.where(scale > 0, scale, 1.0)
    return LocalMoves(share, known)


def scales_of(path: Path, moves: LocalMoves) -> np.ndarray:
    """The scale of the local moves of each coordinate of a path; one where it is not known."""
    scales = np.ones(path.dim)
    for site in path.sites:
        known = moves.known.get((site.name, site.shape))
        if site.columns is not None and known is not None and len(known) == len(scales[site.columns]):
            scales[site.columns] = known
    return scales
