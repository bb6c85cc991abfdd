"""The posterior probability of each value of a discrete site or deterministic, with its Monte Carlo error.

With the weight w_k of each path, the relative error s_k of its evidence, and the share a_k of its mass with a value,

    p = Σ_k w_k a_k,    sd² = Σ_k w_k² (sd(a_k)² + (a_k − p)² s_k²),

as in `expectation`, where f is the indicator of the value. The share is the mean of conditional probabilities where the
variable can be summed out (`conditional`), else that of the draws. If a share u of the mass may be where no draws are,
(u σ)² is added, with the σ of `expectation`, or the square of the change of p if that mass D_k is on the paths that may
have it, (p + Σ_k D_k a_k)/(1 + D) − p, whichever is larger. Engines that sample whole executions have errors by their
independent blocks (`blocks`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from anabranch import errors
from anabranch.combine.blocks import Blocks, blocks_of, standard_error
from anabranch.combine.conditional import Share, conditional_probabilities
from anabranch.combine.evidence import Evidence, doubts_of
from anabranch.combine.names import Place, check_name, place_of
from anabranch.combine.outcomes import outcomes_at
from anabranch.combine.parts import MIN_DRAWS, effective_draws
from anabranch.combine.solution import Solution
from anabranch.divide import Path
from anabranch.label import Label, is_label

__all__ = ["Conditionals", "Probabilities", "key_of", "probability"]

Conditionals = dict[int, Mapping[int, Mapping[int, Share]]]
"""For some solutions, by number, the conditional probabilities of the values of their coordinates."""


class Probabilities(dict[Any, float]):
    """The probability of each value, the most probable first. `errors` has the standard error of each.

    Example:
        >>> Probabilities({5: 0.75, 6: 0.25}, {5: 0.011, 6: 0.011})
        {5: 0.750 ± 0.011, 6: 0.250 ± 0.011}
    """

    def __init__(self, probabilities: Mapping[Any, float], standard_errors: Mapping[Any, float]) -> None:
        super().__init__(probabilities)
        self.errors = dict(standard_errors)

    def __repr__(self) -> str:
        from anabranch.report.table import with_error

        return f"{{{', '.join(f'{value!r}: {with_error(p, self.errors[value])}' for value, p in self.items())}}}"

    def __reduce__(self) -> Any:
        return Probabilities, (dict(self), self.errors)


def probability(
    solutions: Sequence[Solution], evidence: Evidence, name: str, conditionals: Conditionals
) -> Probabilities:
    """The probability of each value, the most probable first; None stands for executions without the name.

    The conditional probabilities that it takes are added to those given.
    """
    check_name(solutions, name)
    weights = evidence.weights
    found: dict[Any, dict[int, Share]] = {}
    for number, (solution, weight) in enumerate(zip(solutions, weights, strict=True)):

        def conditional(column: int, number: int = number, solution: Solution = solution) -> Mapping[int, Share]:
            if number not in conditionals:
                # Without the program of a loaded posterior draws are counted.
                conditionals[number] = {}
                with contextlib.suppress(errors.NeedsProgram):
                    conditionals[number] = conditional_probabilities(solution)
            return conditionals[number].get(column, {})

        if weight == 0 and solution.log_possible > -np.inf:  # nothing is known of it but what is fixed
            found.update({value: {**found.get(value, {}), number: Share(1.0, 0.0)} for value in _fixed(solution, name)})
        for value, share in _shares(solution, name, conditional) if weight > 0 else ():
            of_paths = found.setdefault(value, {})
            before = of_paths.get(number, Share(0.0, 0.0))
            of_paths[number] = Share(before.mean + share.mean, before.variance + share.variance)
    totals = {value: sum(weights[k] * share.mean for k, share in each.items()) for value, each in found.items()}
    ranked = dict(sorted(((value, float(p)) for value, p in totals.items()), key=lambda item: -item[1]))
    blocks = blocks_of(solutions)
    if blocks is None:
        return Probabilities(ranked, _errors_by_paths(solutions, evidence, ranked, found))
    return Probabilities(ranked, _errors_by_blocks(solutions, weights, name, ranked, blocks))


# The share of each value on a path ----------------------------------------------------------------------------------


def _shares(
    solution: Solution, name: str, conditional: Callable[[int], Mapping[int, Share]]
) -> Iterator[tuple[Any, Share]]:
    """The values of the name on a path, each with its share of the path's mass."""
    column = _free_column(solution, name)
    if column is not None and (shares := conditional(column)):
        yield from shares.items()
        return
    weights = solution.weights
    squares = weights**2
    inflation = 1 / (squares.sum() * effective_draws(solution)) if len(weights) else 0.0
    together: dict[Any, list[np.ndarray]] = {}
    for value, rows in _members(solution, name):
        if rows is None:
            yield value, Share(1.0, 0.0)
        else:
            together.setdefault(value, []).append(rows)
    for value, parts in together.items():  # several decision sequences may have the same value
        rows = np.concatenate(parts)
        mean, square = min(float(weights[rows].sum()), 1.0), float(squares[rows].sum())
        variance = inflation * ((1 - mean) ** 2 * square + mean**2 * max(squares.sum() - square, 0.0))
        if effective_draws(solution) < MIN_DRAWS:
            variance = max(variance, len(rows) / len(weights) * (1 - len(rows) / len(weights)))
        if len(rows) == len(weights):
            mean, variance = 1.0, 0.0
        yield value, Share(mean, variance)


def _fixed(solution: Solution, name: str) -> list[Any]:
    """The value of the name that all executions of a path have, if it is that of a fixed site or they have none."""
    place = place_of(solution.path, name)
    if place is None:
        return [None]
    site = next((site for site in solution.path.sites if site.name == place.name), None)
    return [] if site is None or site.value is None else [key_of(site.value[place.element])]


def _free_column(solution: Solution, name: str) -> int | None:
    """The coordinate with this name, of a discrete site that is not fixed and whose values are not all known."""
    place = place_of(solution.path, name)
    if place is None or solution.is_exact:
        return None
    for site in solution.path.sites:
        if site.name == place.name and site.discrete and site.columns is not None:
            columns = np.arange(site.columns.start, site.columns.stop).reshape(site.shape)
            return int(columns[place.element]) if len(place.element) == columns.ndim else None
    return None


def _members(solution: Solution, name: str) -> Iterator[tuple[Any, np.ndarray | None]]:
    """The values of the name on a path, each with the numbers of the draws that have it; None: all of the path."""
    path, place = solution.path, place_of(solution.path, name)
    if place is None:
        yield None, None
        return
    site = next((site for site in path.sites if site.name == place.name), None)
    if site is not None and not site.discrete:
        raise _not_discrete(name, path)
    if site is not None and len(place.element) not in (0, len(site.shape)):
        raise IndexError(f"{name}: the site has the shape {site.shape}")
    if site is not None and site.value is not None:
        yield key_of(site.value[place.element]), None
        return
    for named in outcomes_at(path, solution.points):
        both = {**named.values, **named.deterministics}
        if place.name not in both:
            yield None, named.index
            continue
        if isinstance(label := both[place.name], Label):
            if place.element:
                raise IndexError(f"{name}: {place.name} is a label, without elements")
            yield label.value, named.index
            continue
        values = np.asarray(both[place.name])
        if not named.varies[0].get(place.name, True):
            yield key_of(values[place.element]), named.index
            continue
        for value, rows in _by_value(name, place, path, values):
            yield value, named.index[rows]


def _by_value(name: str, place: Place, path: Path, values: np.ndarray) -> Iterator[tuple[Any, np.ndarray]]:
    """The distinct values, each with the rows that have it."""
    at: tuple[Any, ...] = (slice(None), *place.element)
    values = values[at]
    distinct, group = np.unique(values, axis=0, return_inverse=True)
    whole = not np.issubdtype(values.dtype, np.inexact) or bool((values == np.round(values)).all())
    if not (whole or path.dim == 0 or len(distinct) == 1 < len(values)):
        raise _not_discrete(name, path)
    order = np.argsort(group.reshape(-1), kind="stable")
    ends = np.cumsum(np.bincount(group.reshape(-1), minlength=len(distinct)))
    for value, rows in zip(distinct, np.split(order, ends[:-1]), strict=True):
        yield key_of(value), rows


def key_of(value: Any) -> Any:
    """A value as Python numbers: an int where it is whole, a tuple for a vector; a label as it is."""
    if is_label(value):
        return value
    value = np.asarray(value)
    if value.ndim:
        return tuple(key_of(part) for part in value)
    number = value.item()
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _not_discrete(name: str, path: Path) -> errors.NotDiscrete:
    return errors.NotDiscrete(
        f"{name!r} takes real values on the path ({path.description}): a single value has no probability",
        remedy=f"Use expectation(lambda draw: draw[{name!r}] > 0) for that of a range, or draws(n)[{name!r}]",
    )


# Errors ---------------------------------------------------------------------------------------------------------------


def _errors_by_paths(
    solutions: Sequence[Solution],
    evidence: Evidence,
    totals: Mapping[Any, float],
    found: Mapping[Any, Mapping[int, Share]],
) -> dict[Any, float]:
    """The errors if each path has an estimate of its own."""
    weights = evidence.weights
    relative = np.array([0.0 if each.estimate is None else each.estimate.log_evidence_sd for each in solutions])
    relative = np.where(weights > 0, relative, 0.0)
    log_evidence = evidence.log_evidence
    doubts = np.zeros(len(weights)) if log_evidence is None else doubts_of(solutions, log_evidence, weights)
    out, seen = {}, len({k for each in found.values() for k in each})
    for value, total in totals.items():
        shares, variances = np.zeros(len(solutions)), np.zeros(len(solutions))
        for k, share in found[value].items():
            shares[k], variances[k] = share
        centres = np.where(np.abs(shares - total) < 1e-12, 0.0, shares - total)  # of rounding
        with np.errstate(invalid="ignore"):
            between = np.where(centres == 0, 0.0, (centres * relative) ** 2)
        anywhere = evidence.doubtful_share * _spread(total, shares.sum() / max(seen, 1), evidence.doubtful_share)
        change = (total + doubts @ shares) * (1 - evidence.doubtful_share) - total
        doubt = max(anywhere, abs(float(change)))
        out[value] = float(np.sqrt((weights**2 * (variances + between)).sum() + doubt**2))
    return out


def _spread(p: float, mean: float, doubtful_share: float) -> float:
    """σ of the indicator of a value: as far as the mass is doubtful over all paths alike, where its mean is this."""
    own = p * (1 - p) if 0 < p < 1 else 0.0
    everywhere = mean * (1 - p) * (1 - p) + (1 - mean) * p * p
    return float(np.sqrt(max(own, (1 - doubtful_share) * own + doubtful_share * everywhere)))


def _errors_by_blocks(
    solutions: Sequence[Solution], weights: np.ndarray, name: str, totals: Mapping[Any, float], blocks: Blocks
) -> dict[Any, float]:
    """The errors if all paths come from the same executions: S_b = C_b − p W_b, by counting draws."""
    whole = np.zeros(blocks.count)
    members: dict[Any, list[tuple[np.ndarray, np.ndarray]]] = {}
    for k, (solution, weight) in enumerate(zip(solutions, weights, strict=True)):
        if not (weight > 0 and len(solution.points)):
            continue
        joint = weight * solution.weights
        np.add.at(whole, blocks.of_draws[k], joint)
        for value, rows in _members(solution, name):
            rows = np.arange(len(joint)) if rows is None else rows
            members.setdefault(value, []).append((blocks.of_draws[k][rows], joint[rows]))
    out = {}
    for value, total in totals.items():
        sums = -total * whole
        for numbers, joint in members.get(value, ()):
            np.add.at(sums, numbers, joint)
        out[value] = float(standard_error(sums @ sums, blocks.count))
    return out
