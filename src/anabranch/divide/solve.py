"""Solve for what chance does not find: answers and values that no execution has met.

Executions are led to the unmet side of a condition by splitting on its margin, with the decisions before it as they are
(as concolic testing solves for the other side of a branch; here by search, and with the prior probability of what is
found). They are then sent through the tree, which records the path behind; its own conditions come next, so that a
conjunction is met one part after the other. The nodes of the tree are taken in the order of their prior probability.

Unmet values of discrete sites are tried in the order of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from anabranch import errors
from anabranch.divide.batch import Constraints, stable_hash
from anabranch.divide.decision_node import DecisionNode
from anabranch.divide.discover import counts_of
from anabranch.divide.division import Division
from anabranch.divide.executions import Executions
from anabranch.divide.guarded_prior import Guard, GuardedPrior
from anabranch.divide.splitting import Splitting, Start
from anabranch.divide.unmet import UnmetAnswer, UnmetValue, unmet_answers, unmet_values
from anabranch.settings import check, finite, instance, whole

__all__ = ["Solved", "Solving"]


@dataclass
class Solved:
    """What was tried so far: answers, by the node and the answer, and values, by the site; prior draws that come to the
    nodes that were met by solving for them, by the node; and the steps that all of this took."""

    tried: set[tuple[int, bytes]] = field(default_factory=set)
    values: set[tuple[str, int]] = field(default_factory=set)
    starts: dict[int, Start] = field(default_factory=dict)
    evaluations: int = 0

    def log_probability_of(self, node: DecisionNode) -> float:
        """The log prior probability of coming to a node, or to the last one on the way to it of which it is known."""
        way = [node.root, *node.way()]
        for at in reversed(way):
            if at.key in self.starts:
                return self.starts[at.key].log_probability
            if at.visits:
                return float(np.log(at.visits / way[0].visits))
        return 0.0

    def start_of(self, node: DecisionNode) -> Start | None:
        """Draws that come to the node, or to the last one on the way to it to which they were led."""
        return next((self.starts[at.key] for at in reversed(node.way()) if at.key in self.starts), None)


@dataclass(frozen=True)
class Solving:
    """How long to solve for what no execution has met.

    Args:
        max_answers: unmet sides of conditions that are solved for in a run; more meet longer conjunctions.
        max_values: unmet values of discrete sites that are tried in a run; more come further into the tails.
        max_evaluations: steps of all particles after which nothing more is solved for.
        executions: executions that are sent to each answer that was solved for; more give more points to start from.
        executions_per_value: executions that are sent to each value.
        least_log_probability: log prior probability below which nothing is tried; less finds what is rarer.
        splitting: how executions are led to an answer.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> def rare():
        ...     x, y = ab.sample("x", dist.Normal(0.0, 1.0)), ab.sample("y", dist.Normal(0.0, 1.0))
        ...     if x > 4 and y > 4:
        ...         ab.sample("z", dist.Normal(x, 1.0))
        >>> division = ab.find_paths(rare)
        >>> len(division), len(list(Solving().answers(division, Solved(), seed=0))), len(division)
        (1, 2, 3)
        >>> bool(abs(min(path.log_prior_probability for path in division) - -20.73) < 1)
        True
    """

    max_answers: int = 16
    max_values: int = 32
    max_evaluations: int = 1_000_000
    executions: int = 50
    executions_per_value: int = 4
    least_log_probability: float = -38.0
    splitting: Splitting = field(default_factory=lambda: Splitting(particles=300, steps=6, survivors=0.3))

    def __post_init__(self) -> None:
        check(self, max_answers=whole(), max_values=whole(), max_evaluations=whole(),
              executions=whole(1), executions_per_value=whole(1), least_log_probability=finite(),
              splitting=instance(Splitting, "a Splitting()"))  # fmt: skip

    def answers(self, division: Division, solved: Solved, seed: int) -> Iterator[list[Executions]]:
        """Lead executions to unmet sides of conditions, the most probable nodes first; those sent to each answer."""
        while len(solved.tried) < self.max_answers and solved.evaluations < self.max_evaluations:
            waiting = [each for each in unmet_answers(division.root) if _key(each) not in solved.tried]
            waiting = [each for each in waiting if self._is_possible(solved.log_probability_of(each.node))]
            if not waiting:
                break
            each = max(waiting, key=lambda each: solved.log_probability_of(each.node))
            solved.tried.add(_key(each))
            yield self._led(division, solved, each, seed)

    def _is_possible(self, log_probability: float) -> bool:
        return log_probability > self.least_log_probability

    def _led(self, division: Division, solved: Solved, unmet: UnmetAnswer, seed: int) -> list[Executions]:
        """Executions that give the answer, sent through the tree; none if it cannot be met."""
        recording, asked = unmet.recording, unmet.decision.node
        assert asked is not None
        guards = [Guard(decision.node, decision.answer) for decision in unmet.before if decision.node is not None]
        fixed = [recording.sites[decision.site] for decision in unmet.before if decision.site is not None]
        seed = stable_hash("solve", seed, unmet.node.key) >> 2
        try:
            prior = GuardedPrior(recording, [*guards, Guard(asked, unmet.answer)], fixed)
        except errors.AnabranchError:  # a site without a transform, of which the path itself tells the user
            return []
        (split,) = self.splitting.run(prior, seed, solved.start_of(unmet.node))
        solved.evaluations += split.evaluations
        if not len(split.points):
            return []
        start = Start(prior.values(split.points), split.log_probability)
        solved.starts[stable_hash(unmet.node.key, unmet.answer.tobytes())] = start
        rows = np.random.default_rng(seed).permutation(len(split.points))[: self.executions]
        return _sent(division, {name: value[rows] for name, value in start.values.items()}, seed, split.log_probability)

    def values(self, division: Division, solved: Solved, seed: int) -> list[Executions]:
        """Send executions to unmet values of discrete sites, the most probable first."""
        left = self.max_values - len(solved.values)
        if left <= 0:
            return []
        unmet = [
            each for each in unmet_values(division.root, left) if (each.site.name, each.value) not in solved.values
        ]
        logs = {each: solved.log_probability_of(each.node) + each.log_mass for each in unmet}
        unmet = sorted((each for each in unmet if self._is_possible(logs[each])), key=lambda each: -logs[each])[:left]
        if not unmet:
            return []
        solved.values |= {(each.site.name, each.value) for each in unmet}
        rows = [each for each in unmet for _ in range(self.executions_per_value)]
        values, present = _table(rows)
        return division.send(Constraints(values, present), len(rows), stable_hash("values", seed) >> 2, solving=True)


def _key(unmet: UnmetAnswer) -> tuple[int, bytes]:
    return unmet.node.key, unmet.answer.tobytes()


def _sent(division: Division, values: dict[str, np.ndarray], seed: int, log_probability: float) -> list[Executions]:
    """Executions with these values, which have this log probability; the share of them that takes a path is that of the
    path, if no other executions were there before."""
    known, n = set(division.by_signature), max(map(len, values.values()))
    arrivals = division.send(Constraints(values), n, seed, solving=True)
    for signature, count in counts_of(arrivals).items():
        if signature not in known and division.by_signature[signature].apart:
            division.by_signature[signature].met_by_solving(log_probability + float(np.log(count / n)))
    return arrivals


def _table(rows: Sequence[UnmetValue]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The values that lead to each row, by the name of the site, and which rows have one."""
    given = [row.given for row in rows]
    shapes = {name: value for row in given for name, value in row.items()}
    values = {name: np.stack([row.get(name, value) for row in given]) for name, value in shapes.items()}
    return values, {name: np.array([name in row for row in given]) for name in shapes}
