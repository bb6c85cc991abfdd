"""A path: a straight-line program (SLP) with a fixed set of variables (paper, section 4.1)."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, cast

import cloudpickle
import numpy as np

from anabranch import errors
from anabranch.divide.compiled import Compiled
from anabranch.divide.decision_node import DecisionNode
from anabranch.divide.evaluation import Evaluation, NamedValues
from anabranch.divide.host_gradient import HostCost
from anabranch.divide.internals import without_reverse_mode
from anabranch.divide.interpret import Interpreted
from anabranch.divide.kept import SiteInfo
from anabranch.divide.prior import PriorDraws, draw_within
from anabranch.divide.recording import Choices, Program, Recording
from anabranch.divide.replay import check_same, rerun
from anabranch.divide.sequences import Sequences
from anabranch.settings import seed as any_seed
from anabranch.settings import whole

__all__ = ["Path", "SiteInfo", "rebuild"]

logger = logging.getLogger("anabranch")

_SELDOM, _JUDGED = 2e-4, 5_000
"""A warning is logged once more than this share of the points had no density, of at least so many points."""


class Path(Sequences):
    """A straight-line program: every execution that meets the same addresses with the same values fixed.

    A decision sequence that was solved for since executions from the prior do not meet it is a path of its own, `apart`
    from another with the same addresses and values: what is rare within a path, a sampler of the path does not find.

    Points are rows of `dim` numbers: unconstrained coordinates of the continuous sites, values of the discrete ones.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> def coin():
        ...     fair = ab.sample("fair", dist.Bernoulli(0.5))
        ...     p = 0.5 if fair else ab.sample("p", dist.Beta(1.0, 1.0))
        ...     ab.observe("heads", dist.Binomial(10, p), 9)
        >>> unfair, fair = sorted(ab.find_paths(coin).paths, key=lambda path: -path.dim)
        >>> unfair.description, unfair.dim
        ('fair = 0', 1)
        >>> float(unfair.evaluate([[0.0]]).log_density[0].round(4))
        -6.7083
    """

    def __init__(
        self,
        program: Program,
        recordings: Sequence[Recording],
        leaves: Sequence[DecisionNode] = (),
        apart: bool = False,
    ) -> None:
        super().__init__(program, recordings, apart)
        self._leaves, self._said_invalid = list(leaves), False
        self._is_repeated = False  # whether it was looked into that the program does the same again
        self._log_probability: float | None = None
        self.invalid = 0
        """Points of the path with a density of NaN or plus infinity; they count as outside the path."""
        self.evaluated = 0
        """Points at which the density was computed."""
        self.padding: dict[int, int] = {}  # numbers computed for it, by the block that would have needed less
        self.revision = 0
        """How many decision sequences were added since it was found: each changes its density."""

    def add(self, leaf: DecisionNode) -> None:
        """Add a decision sequence of the same path."""
        assert leaf.recording is not None
        self._sequences[0].made = None
        self._keep(leaf.recording)
        self._leaves.append(leaf)
        self.revision += 1
        self._is_repeated = False
        self.padding = {}
        self.__dict__.pop("description", None)

    @property
    def log_prior_probability(self) -> float:
        """The log prior probability of the path: exact if it takes only discrete sites with known parameters."""
        if self._log_probability is not None:
            return self._log_probability
        return float(reduce(np.logaddexp, (leaf.log_probability() for leaf in self._leaves), -np.inf))

    def met_by_solving(self, log_probability: float) -> None:
        """Take this for the log prior probability of a path that no execution from the prior has met."""
        self._log_probability = float(log_probability)

    @property
    def prior_probability(self) -> float:
        """The prior probability of the path; zero where it is too small for a float."""
        return float(np.exp(self.log_prior_probability))

    def __repr__(self) -> str:
        kind = ", interpreted" if self.interpreted else ""
        return f"Path({self.description!r}, dim={self.dim}, prior_probability={self.prior_probability:.4g}{kind})"

    @property
    def _backend(self) -> Compiled | Interpreted:
        """The density, made anew where it was dropped together with the recordings."""
        first = self._kept[0]
        recording, backend = first.recording, first.made
        if backend is None:
            self._check_repetition()
            is_run = self.interpreted
            backend = Interpreted(self.program, recording) if is_run else Compiled(self.recordings, self.padding)
            first.made = backend
        return cast(Compiled | Interpreted, backend)

    @property
    def samplers(self) -> dict[Any, Callable[..., Any]]:
        """Functions that were compiled together with the density, by their settings."""
        return self._backend.samplers

    def _check_repetition(self) -> None:
        """A program that does not do the same again must not get a density."""
        if self._is_repeated:
            return
        for recording in self.recordings if self.program.repetitions.is_due() else ():
            check_same(recording, rerun(self.program, recording.choices))
        self._is_repeated = True

    def evaluate(self, points: Any, *, compile: bool = True, count: bool = True) -> Evaluation:
        """Log prior, log likelihood and guard at each point; `compile=False` computes a few points by NumPy.

        Points without a finite density are counted and reported; not with `count=False`, for points far from any draw.
        """
        evaluate = self._backend.evaluate if compile else self._backend.evaluate_on_host
        found = evaluate(self._checked(points))
        return self.counted(found) if count else found

    def differentiate(
        self, points: Any, inverse_temperature: float = 1.0, *, compile: bool = True
    ) -> tuple[Evaluation, np.ndarray]:
        """What `evaluate` gives, and the gradient of log prior + inverse_temperature · log likelihood at each point.

        `inverse_temperature` is one number. Columns of discrete sites have a gradient of zero. `compile=False` computes
        a few points by NumPy.
        """
        points, backend = self._checked(points), self._differentiable
        on_host = not compile and self.host_cost() is not None
        with self._differentiated():
            differentiate = backend.differentiate_on_host if on_host else backend.differentiate
            evaluation, gradient = differentiate(points, float(inverse_temperature))
        lost = evaluation.inside & ~np.isfinite(gradient).all(axis=1)
        if lost.any():
            # A select differentiates the side that is not taken, too, where it may have no derivative.
            evaluate = backend.evaluate_as_differentiated if on_host else backend.evaluate
            gradient[lost] = self._differences(points[lost], float(inverse_temperature), evaluate)
        return self.counted(evaluation), gradient

    def host_cost(self) -> HostCost | None:
        """What a gradient by NumPy takes, and what compiling it takes; None where NumPy cannot compute it."""
        with self._differentiated():
            return self._differentiable.host_cost

    def evaluate_as_differentiated(self, points: Any, *, compile: bool) -> Evaluation:
        """What `evaluate` gives, by the function that computes the gradient, too."""
        if compile or self.host_cost() is None:
            return self.differentiate(points)[0]
        return self.counted(self._differentiable.evaluate_as_differentiated(self._checked(points)))

    @property
    def _differentiable(self) -> Compiled:
        """The density, if it is not one that the interpreter runs."""
        if isinstance(self._backend, Compiled):
            return self._backend
        raise errors.NoGradient(
            f"the path ({self.description}) is run by the interpreter, which has no gradient",
            where=self.recording.sites[0].where,
            remedy="Write the program with jax.numpy so that it can be compiled, or use a method without gradients",
        )

    @contextmanager
    def _differentiated(self) -> Iterator[None]:
        """Within this, JAX differentiates the density, if it can."""
        try:
            yield
        except ValueError as error:
            if not without_reverse_mode(error):
                raise
            raise errors.NoGradient(
                f"the path ({self.description}) cannot be differentiated: {error}",
                where=self.recording.sites[0].where,
                remedy="Use lax.scan or a Python loop instead of lax.while_loop",
            ) from error

    def _differences(
        self,
        points: np.ndarray,
        inverse_temperature: float,
        evaluate: Callable[[np.ndarray], Evaluation],
        step: float = 1e-6,
    ) -> np.ndarray:
        """The gradient by central differences of the density; zero in the columns of discrete sites."""
        out = np.zeros_like(points)
        for column in np.flatnonzero(~self.discrete):
            shift = np.zeros(self.dim)
            shift[column] = step
            up, down = (evaluate(points + s) for s in (shift, -shift))
            prior, likelihood = up.log_prior - down.log_prior, up.log_likelihood - down.log_likelihood
            out[:, column] = (prior + inverse_temperature * likelihood) / (2 * step)
        return out

    def counted(self, evaluation: Evaluation) -> Evaluation:
        """The evaluation, after its points and those of them that have no density were counted."""
        self.invalid += int(evaluation.invalid.sum())
        self.evaluated += len(evaluation.invalid)
        if self.is_often_invalid and not self._said_invalid:
            self._said_invalid = True
            logger.warning(
                "the density of the path (%s) is NaN or infinite at %d of %d points; they count as outside it",
                self.description,
                self.invalid,
                self.evaluated,
            )
        return evaluation

    @property
    def is_often_invalid(self) -> bool:
        """Whether the density is NaN or infinite at more than one point in five thousand.

        A search for modes tries a few such points far out; more of them mean that draws from the path meet them.
        """
        return self.invalid > _SELDOM * max(self.evaluated, _JUDGED)

    def _checked(self, points: Any) -> np.ndarray:
        points = np.asarray(points, np.float64)
        if points.ndim != 2 or points.shape[1] != self.dim:
            raise ValueError(f"points must have shape (n, {self.dim}), one row for each point; got {points.shape}")
        return points

    def values(self, points: Any) -> dict[str, np.ndarray]:
        """Every site by name at each point, the fixed ones included."""
        points = self._checked(points)
        out: dict[str, np.ndarray] = {}
        for part in self._backend.named(points, lambda recording: None):
            for name, value in part.values.items():
                shape = (len(points), *value.shape[1:])
                fill = 0 if np.issubdtype(value.dtype, np.integer) else np.nan
                out.setdefault(name, np.full(shape, fill, value.dtype))[part.index] = value
        return out

    def outcomes(self, points: Any) -> list[NamedValues]:
        """Sites, deterministics and the program's return value at each point.

        One `NamedValues` for each decision sequence that some of the points take; `index` says which points. What is
        the same for all of them, a constant, comes without the axis for points.
        """
        return self._backend.named(self._checked(points))

    def traced_values(self, points: Any, traced: Callable[[Recording], Any], at_once: int) -> list[NamedValues]:
        """The sites at each point and, as the `result`, the traced values that `traced` gives for a recording.

        So many points are computed `at_once`, and there is one `NamedValues` for each part.
        """
        return self._backend.named(self._checked(points), traced, at_once)

    def points(self, values: Mapping[str, Any]) -> np.ndarray:
        """The points at which the sites have these values, each an array with the batch as its first axis."""
        return self.checked_inside(self.coordinates(values))

    def checked_inside(self, points: np.ndarray) -> np.ndarray:
        """The points; raises `ValueError` if a value was outside its support."""
        for site in self.sites:
            if site.columns is not None and np.isnan(points[:, site.columns]).any():
                raise ValueError(f"values: site {site.name!r} ({site.where}) has a value outside its support")
        return points

    def coordinates(self, values: Mapping[str, Any]) -> np.ndarray:
        """What `points` gives, with NaN where a value is outside its support."""
        arrays = {name: np.asarray(value) for name, value in values.items()}
        unknown = arrays.keys() - {site.name for site in self.sites}
        if unknown:
            raise ValueError(f"values: the path ({self.description}) has no site {min(unknown)!r}")
        for site in self.sites:
            if site.value is not None:
                arrays.setdefault(site.name, site.value[None])
            elif site.name not in arrays:
                raise ValueError(f"values: site {site.name!r} ({site.where}) is missing")
            given = arrays[site.name]
            if given.ndim == 0 or given.shape[1:] != site.shape:
                shape = ", ".join(["n", *map(str, site.shape)])
                raise ValueError(f"values: site {site.name!r} must have shape ({shape}); got {given.shape}")
            if site.value is not None and not (given == site.value).all():
                raise ValueError(f"values: site {site.name!r} is fixed to {site.value} in this path")
        return self.points_of({site.name: arrays[site.name] for site in self.sites})

    def points_of(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """The points with these values of some sites, over a batch; the coordinates of the others are zero."""
        return self._backend.points(values)

    def prior(
        self, n: int, seed: int = 0, attempts: int | None = None, columns: np.ndarray | None = None
    ) -> PriorDraws:
        """Prior draws within the path, with the path's prior probability as those draws estimate it.

        Draws have weights, `log_weights`: all the same unless the probability of a fixed value depends on the draw.
        There may be fewer than `n` where the guards are rarely met, or where so many `attempts` are made. With
        `columns`, only these coordinates are sure to be drawn, which takes less time where there are many others.
        """
        return draw_within(self, whole(1)("n", n), any_seed()("seed", seed), attempts, columns)

    def __reduce__(self) -> Any:
        # cloudpickle, since programs are often closures, or functions of a notebook.
        return _unpickled, (cloudpickle.dumps(self.program), self.choices, self.log_prior_probability, self.apart)


def rebuild(program: Program, choices: Sequence[Choices]) -> Path:
    """A path from the program and its `choices` alone."""
    return Path(program, [rerun(program, each) for each in choices])


def _unpickled(pickled: bytes, choices: list[Choices], log_probability: float, apart: bool = False) -> Path:
    path = rebuild(cloudpickle.loads(pickled), choices)
    path._log_probability, path.apart = log_probability, apart
    return path
