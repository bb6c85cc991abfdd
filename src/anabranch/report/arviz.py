"""A posterior for ArviZ: draws, log likelihood, predictions, prior and data as groups of xarray.

ArviZ 0.x has its own `InferenceData` with these groups, and 1.x takes a `DataTree` of xarray. A group has the variables
that every draw has, in one shape: over all paths those that the paths share, over one path all of its own. Text that
every draw has is a coordinate of the draws, by which they can be grouped; tuples with text are left out.

Draws are independent, or resampled so that they nearly are, in random order. They are split into chains because ArviZ
asks for several; R-hat of these is close to one whatever happened, and says nothing. The attribute `sampling` says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from anabranch import errors
from anabranch.combine.draws import Draws, Picked, by_observation, draws_of, pick
from anabranch.combine.evidence import Evidence
from anabranch.combine.observed import data_of, log_likelihoods
from anabranch.combine.prediction import from_prior, predictive
from anabranch.combine.solution import Run, Solution
from anabranch.conquer.weights import systematic
from anabranch.divide import NamedValues, Path, Program, prior_is_sampled

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["GROUPS", "Labels", "Source", "datasets", "inference_data", "tree"]

GROUPS = ("posterior", "log_likelihood", "posterior_predictive", "prior", "prior_predictive", "observed_data")
SAMPLING = (
    "independent draws, resampled by their weights and split into chains at random: R-hat says nothing of convergence; "
    "see the warnings of the posterior"
)


@dataclass(frozen=True)
class Labels:
    """Names for the axes of variables, and labels along them, as ArviZ takes them; without names, those of plates."""

    coords: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    dims: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def of(self, name: str, shape: Sequence[int], plates: Mapping[str, Sequence[str | None]]) -> list[str]:
        """The names of the axes of a variable: given, those of plates, or as ArviZ makes them."""
        given = list(self.dims.get(name, ()))
        if len(given) > len(shape):
            raise errors.BadSetting(f"dims: {name!r} has {len(shape)} axes; got {given}")
        found = [*given, *([None] * (len(shape) - len(given)))]
        of_plates = plates.get(name, ())
        if not given and len(of_plates) == len(shape):
            found = [None if each == name else each for each in of_plates]
        return [f"{name}_dim_{k}" if each is None else each for k, each in enumerate(found)]


@dataclass(frozen=True)
class Source:
    """What is exported: the program, some of its paths with their weights, and how they were found."""

    program: Program
    solutions: Sequence[Solution]
    weights: np.ndarray
    attributes: Mapping[str, Any]

    @classmethod
    def of_all(cls, program: Program, solutions: Sequence[Solution], evidence: Evidence, run: Run) -> Source:
        """All paths."""
        from anabranch import __version__

        known = {"log_evidence": evidence.log_evidence, "log_evidence_sd": evidence.log_evidence_sd}
        attributes = {
            "program": program.name, "inference_library": "anabranch", "inference_library_version": __version__,
            "seed": str(run.seed), **{name: value for name, value in known.items() if value is not None},
            "evaluations": run.evaluations, "sampling_time": run.seconds, "stopped": run.stopped, "sampling": SAMPLING,
        }  # fmt: skip
        return cls(program, solutions, evidence.weights, attributes)

    def of_path(self, solution: Solution, weight: float) -> Source:
        """One path."""
        own = {"path": solution.path.description, "path_weight": weight}
        return replace(self, solutions=[solution], weights=np.ones(1), attributes={**self.attributes, **own})

    @property
    def heaviest(self) -> Path:
        return self.solutions[int(np.argmax(self.weights))].path


def inference_data(groups: Mapping[str, xr.Dataset]) -> Any:
    """The object of the installed ArviZ: an `InferenceData`, or from version 1 on a `DataTree`."""
    import arviz

    if int(arviz.__version__.partition(".")[0]) >= 1:
        return tree(groups)
    named: dict[str, Any] = dict(groups)
    return arviz.InferenceData(**named)


def tree(groups: Mapping[str, xr.Dataset]) -> xr.DataTree:
    """A tree of xarray with a node for each group."""
    import xarray as xr

    return xr.DataTree.from_dict(dict(groups))


def datasets(
    source: Source, n: int, chains: int, seed: int, groups: Iterable[str], labels: Labels
) -> dict[str, xr.Dataset]:
    """The groups that are asked for, with at least n draws in this many chains; without those that have no variable."""
    wanted = set(groups)
    if unknown := wanted - set(GROUPS):
        raise errors.BadSetting(f"groups must be some of {', '.join(GROUPS)}; got {', '.join(sorted(unknown))}")
    n = chains * -(-n // chains)
    picked = pick(source.solutions, source.weights, n, seed)
    plates = source.heaviest.recording.plates
    data = {} if wanted.isdisjoint({"observed_data", "posterior_predictive", "prior_predictive"}) else _data(source)
    found: dict[str, Mapping[str, Any]] = {}
    if "posterior" in wanted:
        draws = draws_of(picked, n)
        found["posterior"] = {name: draws[name] for name in draws.names}
    if "log_likelihood" in wanted:
        found["log_likelihood"] = by_observation(picked, n, _log_likelihoods)
    if "posterior_predictive" in wanted:
        found["posterior_predictive"] = _new_data(predictive(source.program, picked, n, seed, (), {}), data)
    if not wanted.isdisjoint({"prior", "prior_predictive"}) and _has_prior(source):
        draws = _prior(source, n, seed)
        names = [name for name in draws.names if name not in data]
        found["prior"] = {name: draws[name] for name in names if "prior" in wanted}
        found["prior_predictive"] = _new_data(draws, data) if "prior_predictive" in wanted else {}
    out = {name: _dataset(values, chains, labels, plates, source.attributes) for name, values in found.items()}
    if "observed_data" in wanted:
        out["observed_data"] = _dataset(data, None, labels, plates, source.attributes)
    return {name: out[name] for name in GROUPS if name in out and out[name].data_vars}


def _log_likelihoods(path: Path, points: np.ndarray) -> list[NamedValues]:
    return log_likelihoods(path, points, data_only=True)


def _data(source: Source) -> dict[str, np.ndarray]:
    """The observed values that all the paths share."""
    first, *others = (data_of(each.path) for each, w in zip(source.solutions, source.weights, strict=True) if w > 0)
    return {
        name: value
        for name, value in first.items()
        if all(name in other and np.array_equal(other[name], value) for other in others)
    }


def _new_data(draws: Draws, data: Iterable[str]) -> dict[str, Any]:
    return {name: draws[name] for name in data if name in draws.names}


def _has_prior(source: Source) -> bool:
    return all(prior_is_sampled(solution.path) for solution in source.solutions)


def _prior(source: Source, n: int, seed: int) -> Draws:
    """Executions from the prior: of the program, or within the only path."""
    if "path" not in source.attributes:
        return from_prior(source.program, n, seed)
    solution = source.solutions[0]
    drawn = solution.path.prior(n, seed)
    rng = np.random.default_rng([seed, 3])
    chosen = rng.permutation(systematic(np.exp(drawn.log_weights - drawn.log_weights.max()), n, rng))
    picked = [Picked(solution, drawn.points[chosen], np.arange(n))]
    return predictive(source.program, picked, n, seed, (), {})


def _dataset(
    columns: Mapping[str, Any],
    chains: int | None,
    labels: Labels,
    plates: Mapping[str, Sequence[str | None]],
    attributes: Mapping[str, Any],
) -> xr.Dataset:
    """The arrays that have a value in every draw; with axes for chains and draws, unless they are data."""
    import xarray as xr

    variables, texts = {}, {}
    for name, value in columns.items():
        if type(value) is np.ndarray and value.dtype.kind == "U" and chains is not None:
            texts[name] = (["chain", "draw"], value.reshape(chains, -1))
        if type(value) is not np.ndarray or value.dtype.kind not in "biuf":
            continue
        shape = value.shape if chains is None else value.shape[1:]
        axes = labels.of(name, shape, plates)
        if chains is not None:
            value, axes = value.reshape(chains, -1, *shape), ["chain", "draw", *axes]
        variables[name] = (axes, value)
    sizes = {axis: size for axes, value in variables.values() for axis, size in zip(axes, value.shape, strict=True)}
    coords = {axis: labels.coords.get(axis, np.arange(size)) for axis, size in sizes.items()}
    for axis, size in sizes.items():
        if len(coords[axis]) != size:
            raise errors.BadSetting(f"coords: {axis!r} has {size} values; got {len(coords[axis])}")
    # Text labels the draws: a variable of ArviZ has numbers.
    return xr.Dataset(variables, {**coords, **texts}, dict(attributes))
