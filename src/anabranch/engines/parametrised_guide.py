"""A guide with parameters: a program in which each `numpyro.param` statement has become a site.

The site of a parameter has its unconstrained value φ and a flat density, which adds zero to log q. The guide is divided
into its paths once, and executed with the current values of the parameters; log q(x; φ) and ∇_φ log q(x; φ) are
compiled once per path, with the parameters among its coordinates.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.tree_util import tree_leaves
from numpyro.distributions import biject_to, constraints
from numpyro.primitives import Messenger

from anabranch import errors
from anabranch.divide import Constraints, Division, Node, Path, PathTracer, Program, as_input, inside
from anabranch.engines.runner import Runner
from anabranch.engines.traces import Traces
from anabranch.engines.variational import centred

__all__ = ["ParametrisedGuide", "parameter_of"]

_PREFIX = "param "
"""The prefix of the sites of parameters, so that none has the name of a site of the program."""


class _Flat(dist.Distribution):
    """A density of one over all real arrays of a shape, whose draws are the initial value."""

    arg_constraints = {"initial": constraints.real}  # noqa: RUF012
    support = constraints.real

    def __init__(self, initial: Any, *, validate_args: bool | None = None) -> None:
        self.initial = initial
        super().__init__(jnp.shape(initial), (), validate_args=validate_args)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
        return jnp.broadcast_to(self.initial, (*sample_shape, *self.batch_shape))

    def log_prob(self, value: Any) -> Any:
        return jnp.zeros(jnp.shape(value))


class _ParametersAsSites(Messenger):
    """Turns each parameter of a guide into a site with a flat density, and transforms its value."""

    def __init__(self, guide: Callable[..., Any], transforms: dict[str, Any]) -> None:
        super().__init__(guide)
        self.transforms = transforms
        self.__name__ = getattr(guide, "__name__", type(guide).__name__)

    def __enter__(self) -> Any:
        self.values: dict[str, Any] = {}
        return super().__enter__()

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "param":
            return
        name = msg["name"]
        if name in self.values:
            msg["value"], msg["stop"] = self.values[name], True
            return
        transform = biject_to(msg["kwargs"].get("constraint", constraints.real))
        self.transforms[name] = transform
        flat = _Flat(_initial(name, msg["args"], transform))
        msg.update(type="sample", name=_PREFIX + name, fn=flat, args=(), kwargs={})

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        name = parameter_of(msg["name"]) if msg["type"] == "sample" else None
        if name is not None:
            msg["value"] = self.values[name] = self.transforms[name](msg["value"])


def _initial(name: str, given: tuple[Any, ...], transform: Any) -> np.ndarray:
    """The initial value of a parameter, unconstrained."""
    value = as_input(given[0]) if given and given[0] is not None else None
    if value is None or isinstance(value, Node) or not np.issubdtype(np.asarray(value).dtype, np.number):
        raise TypeError(f"parameter {name!r} of the guide needs a number or an array as its initial value, not random")
    unconstrained = np.asarray(as_input(transform.inv(jnp.asarray(value, float))), float)
    if not np.isfinite(unconstrained).all():
        raise ValueError(f"parameter {name!r} of the guide has the initial value {value}, outside its constraint")
    return unconstrained


class ParametrisedGuide(Runner):
    """Executes a guide at the current values of its parameters.

    Attributes:
        unconstrained: φ, an array for each parameter that an execution has met.
        drawn: the last executions, the sites of parameters included.
    """

    def __init__(self, guide: Callable[..., Any], program: Program, seed: int) -> None:
        self._transforms: dict[str, Any] = {}
        function = _ParametersAsSites(guide, self._transforms)
        guide_program = Program(function, program.args, program.kwargs, max_sites=program.max_sites)
        super().__init__(Division(guide_program), seed, is_guide=True)
        self.unconstrained: dict[str, np.ndarray] = {}
        self.drawn = Traces.empty([], 0)

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        with inside():
            return {name: np.asarray(self._transforms[name](value)) for name, value in self.unconstrained.items()}

    def execute(self, n: int, given: Constraints | None = None) -> Traces:
        """Execute the guide n times; the traces do not have the sites of its parameters."""
        values = {_PREFIX + name: np.broadcast_to(v, (n, *v.shape)) for name, v in self.unconstrained.items()}
        drawn = super().execute(n, Constraints(values))
        for key, column in drawn.values.items():
            if (name := parameter_of(key[0])) is not None:
                initial = column[np.argmax(drawn.present[key])]
                if self.unconstrained.setdefault(name, initial).shape != initial.shape:
                    raise errors.EngineCannotRun(
                        f"parameter {name!r} of the guide has different shapes in different executions",
                        remedy="Give a parameter of each shape its own name",
                    )
        self.drawn = drawn
        out = drawn.with_sites(key for key in drawn.values if parameter_of(key[0]) is None)
        self._check_values(out)
        return out

    def number(self, path: Path) -> int:
        if path.signature not in self._numbers:
            _check(path)
        return super().number(path)

    def gradient(self, f: np.ndarray) -> dict[str, np.ndarray]:
        """(1/n) Σ_i ∇_φ log q(x_i; φ) (f_i − b_i) over the executions drawn last, for each of their parameters.

        b_i is the mean of f over the other executions with the parameter.
        """
        scores: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        for path, rows in self.drawn.by_path():
            points = path.coordinates(self.drawn.named(path, rows))
            # A draw at the edge of a support has no finite coordinates.
            finite = np.isfinite(points).all(axis=1)
            gradient = path.differentiate(points[finite])[1]
            for site in path.sites:
                if (name := parameter_of(site.name)) is not None:
                    score = gradient[:, site.columns].reshape(-1, *site.shape)
                    scores.setdefault(name, []).append((rows[finite], score))
        out = {}
        for name, parts in scores.items():
            rows, score = (np.concatenate(column) for column in zip(*parts, strict=True))
            if len(rows) > 1:
                out[name] = np.tensordot(centred(f[rows]), score, 1) / len(f)
        return out

    def move(self, name: str, step: np.ndarray) -> None:
        self.unconstrained[name] = self.unconstrained[name] + step
        if not np.isfinite(self.unconstrained[name]).all():
            raise errors.EngineCannotRun(
                f"parameter {name!r} of the guide became NaN or infinite", remedy="Lower rate, or constrain it"
            )

    def _check_values(self, drawn: Traces) -> None:
        for (name, _), values in drawn.values.items():
            if np.isnan(values).any():
                text = ", ".join(f"{name} = {np.round(value, 4)}" for name, value in self.parameters.items())
                raise errors.EngineCannotRun(
                    f"the guide draws NaN, at the parameters {text}",
                    site=name,
                    remedy="Give its parameters the constraints that they need, as in "
                    'numpyro.param("scale", 1.0, constraint=constraints.positive), or lower rate',
                )


def parameter_of(site: str) -> str | None:
    """The name of the parameter that a site of the guide stands for, if it does."""
    return site.removeprefix(_PREFIX) if site.startswith(_PREFIX) else None


def _check(path: Path) -> None:
    """Refuse a path of a guide whose density has no gradient, lacks a part of it, or is not normalised."""
    if not path.has_gradient:
        raise errors.EngineCannotRun(
            "the guide is run by the interpreter, so that its density cannot be differentiated",
            where=path.recording.sites[0].where,
            remedy="Write the guide with jax.numpy, or use BBVI, which makes its own",
        )
    for recording in path.recordings:
        parameters = sum(1 << site.index for site in recording.sites if parameter_of(site.name) is not None)
        for site in recording.sites:
            with recording.trace.current():
                bounds = [x for x in tree_leaves(site.distribution.support) if isinstance(x, PathTracer)]
            if any(bound.sites & parameters for bound in bounds):
                # The score has no term for it.
                raise errors.EngineCannotRun(
                    "its support depends on the parameters of the guide, so that its density alone does not have their "
                    "gradient",
                    at=site,
                    remedy="Draw from a distribution with a fixed support, and let the parameters change its shape",
                )
        for statement in recording.observations:
            certain = isinstance(statement.distribution, dist.Delta)
            raise errors.EngineCannotRun(
                "the guide puts all its mass into one point here" if certain else "the guide observes or weighs here",
                at=statement,
                remedy="Let the guide draw from a density" if certain else "Let the guide only draw",
            )
