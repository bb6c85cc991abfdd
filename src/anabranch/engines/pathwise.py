"""The pathwise gradient of the bound: draws of the guide move with its parameters.

With x = T(ε; φ) and noise ε that does not depend on φ, the bound is L = E_ε[f(T(ε; φ))], so that

    ∇L = E[∇_φ f(T(ε; φ); φ)]        (Kingma and Welling, 2014; Rezende, Mohamed and Wierstra, 2014),

in which the partial derivative of log q by φ has mean zero and is left out: the rest is zero, without noise, if the
guide is the posterior (Roeder, Wu and Duvenaud, Sticking the Landing, 2017).

The derivative of x by its parameters η follows from its distribution function F(x; η), dx/dη = −(∂F/∂η)/q(x)
(Figurnov, Mohamed and Mnih, Implicit Reparameterization Gradients, 2018); that of a transformed distribution or a
multivariate normal, from the noise. Discrete sites z do not move; their score (f − b) ∇ log q(z) is added (Schulman,
Heess, Weber and Abbeel, Gradient Estimation Using Stochastic Computation Graphs, 2015).

The density of the program must be smooth in the draws of the guide. The engine refuses a branch on a real quantity, at
whose edge the gradient would miss a change of the bound. It cannot detect a jump of `jnp.where` or `floor`.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax
from jax.scipy.linalg import solve_triangular

from anabranch import errors
from anabranch.divide import (
    Evaluator,
    Jitted,
    Lanes,
    Node,
    Path,
    Recording,
    Site,
    Step,
    Terms,
    alias,
    as_input,
    in_blocks,
    unwrapped,
)
from anabranch.engines.parametrised_guide import ParametrisedGuide, parameter_of
from anabranch.engines.traces import Traces
from anabranch.engines.variational import centred

__all__ = ["Pathwise", "check_smooth"]

_BLOCK = 64
"""Executions per call of the compiled gradient."""
_SCORE = 'Use SVI(guide, estimator="score"), which needs no derivative of the program; or BBVI, or ImportanceSampling'


class Pathwise:
    """The pathwise gradient for a guide, compiled for each pair of a path of the guide and one of the program."""

    def __init__(self, guide: ParametrisedGuide) -> None:
        self.guide = guide
        self._pairs: dict[tuple[Any, Any], _Pair] = {}

    def gradient(self, traces: Traces, f: np.ndarray) -> dict[str, np.ndarray]:
        """The mean over the executions that the guide drew last, with f = log γ − log q, and the program executed."""
        if (f == -np.inf).any():
            raise errors.EngineCannotRun("the program has density zero where the guide goes", remedy=_SCORE)
        drawn, signal = self.guide.drawn, centred(f)
        out = {name: np.zeros(value.shape) for name, value in self.guide.unconstrained.items()}
        for path, rows in drawn.by_path():
            for number in np.unique(traces.path[rows]):
                program, both = traces.paths[number], rows[traces.path[rows] == number]
                pair = path.signature, program.signature
                if pair not in self._pairs:
                    check_smooth([path], "guide")
                    check_smooth([program], "program")
                    self._pairs[pair] = _Pair(path.recording, program.recording)
                values = drawn.named(path, both)
                for name, part in self._pairs[pair].gradient(values, signal[both], self.guide.unconstrained).items():
                    out[name] += part / len(f)
        return out


class _Pair:
    """f + (f − b) log q(z) of one execution, as a function of the parameters and of what was drawn."""

    def __init__(self, guide: Recording, program: Recording) -> None:
        self.guide, self.program = guide, program
        self.parameters = {name: site for site in guide.sites if (name := parameter_of(site.name)) is not None}
        self.drawn = {site.name: site for site in guide.sites if parameter_of(site.name) is None}
        self.nodes = [site.outputs[0] for site in self.drawn.values()]
        for site in program.sites:
            if site.name not in self.drawn:
                raise errors.EngineCannotRun(
                    "the guide does not draw it, and draws of the prior do not move with the parameters",
                    at=site,
                    remedy=f"Let the guide draw every site. {_SCORE}",
                )
        self.sources: dict[Node, Step] = {}
        with guide.trace.current():
            self.inputs = {name: self._moving(site) for name, site in self.drawn.items()}
        self.log_q = [guide.once(Terms).of(site) for site in self.drawn.values()]
        self.log_q_discrete = [guide.once(Terms).of(site) for site in self.drawn.values() if site.discrete]
        self.log_density = [*program.once(Terms).prior, *program.once(Terms).likelihood]

    def gradient(
        self, values: dict[str, np.ndarray], signal: np.ndarray, unconstrained: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """The sum over executions, by parameter."""
        rows = np.column_stack([signal, *(values[name].reshape(len(signal), -1) for name in self.drawn)])
        phi = np.concatenate([unconstrained[name].reshape(-1) for name in self.parameters])
        try:
            [gradient] = in_blocks(self._compiled, _BLOCK, rows, phi)
        except (NotImplementedError, TypeError, ValueError) as error:
            raise errors.EngineCannotRun(f"the bound cannot be differentiated: {error}", remedy=_SCORE) from error
        parts = _split(gradient.sum(axis=0), [site.shape for site in self.parameters.values()])
        return dict(zip(self.parameters, parts, strict=True))

    def _moving(self, site: Site) -> Node:
        """Record how the value of a site moves with the parameters; the node of what was drawn comes out."""
        drawn = self.guide.trace.input(site.shape, np.int64 if site.discrete else np.float64)
        value = drawn if site.discrete else _moving(site.distribution, drawn, site)
        self.sources[site.outputs[0]] = alias(site.outputs[0], as_input(value))
        assert drawn.node is not None
        return drawn.node

    @cached_property
    def _compiled(self) -> Jitted:
        derivative = jax.grad(self._objective, argnums=1)
        return Jitted(jax.vmap(lambda row, phi: (derivative(row, phi),), in_axes=(0, None)))

    def _objective(self, row: Any, phi: Any) -> Any:
        shapes = [site.shape for site in self.parameters.values()]
        nodes = [site.outputs[0] for site in self.parameters.values()]
        parameters = dict(zip(nodes, _split(phi, shapes), strict=True))
        fixed = dict(zip(nodes, _split(lax.stop_gradient(phi), shapes), strict=True))
        graph, given = self.guide.trace.graph, parameters | self._drawn(row)
        moving = Evaluator(graph, self.log_q_discrete, given, self.sources, self.nodes).by_jax(Lanes(given))
        values = {node: moving.lanes[node] for node in self.nodes}
        log_q = Evaluator(graph, self.log_q, fixed | values).by_jax(Lanes(fixed | values))
        by_program = {site.outputs[0]: values[self.drawn[site.name].outputs[0]] for site in self.program.sites}
        log_density = Evaluator(self.program.trace.graph, self.log_density, by_program).by_jax(Lanes(by_program))
        score = row[0] * moving.total(self.log_q_discrete)
        return log_density.total(self.log_density) - log_q.total(self.log_q) + score

    def _drawn(self, row: Any) -> dict[Node, Any]:
        """What was drawn, by the nodes of the inputs."""
        parts = _split(row[1:], [site.shape for site in self.drawn.values()])
        return {
            self.inputs[site.name]: jnp.round(part).astype(np.int64) if site.discrete else part
            for site, part in zip(self.drawn.values(), parts, strict=True)
        }


def _moving(distribution: Any, drawn: Any, site: Site) -> Any:
    """The value that was drawn, with the derivative of a draw by the parameters of its distribution."""
    distribution = unwrapped(distribution)
    if isinstance(distribution, dist.TransformedDistribution):
        inner = drawn
        for transform in reversed(distribution.transforms):
            inner = transform.inv(inner)
        value = _moving(distribution.base_dist, lax.stop_gradient(inner), site)
        for transform in distribution.transforms:
            value = transform(value)
        return value
    if isinstance(distribution, dist.MultivariateNormal):
        root = distribution.scale_tril
        noise = solve_triangular(root, (drawn - distribution.loc)[..., None], lower=True)
        return distribution.loc + jnp.squeeze(root @ lax.stop_gradient(noise), -1)
    try:
        below = distribution.cdf(drawn)
    except NotImplementedError:
        raise errors.EngineCannotRun(
            f"{type(distribution).__name__} has no distribution function, so that its draws have no derivative by the "
            "parameters",
            at=site,
            remedy=_SCORE,
        ) from None
    return drawn - (below - lax.stop_gradient(below)) * lax.stop_gradient(jnp.exp(-distribution.log_prob(drawn)))


def check_smooth(paths: Iterable[Path], what: str) -> None:
    """Refuse a path whose density has no gradient, or has edges."""
    for path in paths:
        recording = path.recording
        if not path.has_gradient:
            raise errors.EngineCannotRun(
                f"the path ({path.description}) of the {what} is run by the interpreter, and has no gradient",
                where=recording.sites[0].where,
                remedy=_SCORE,
            )
        for decision in recording.decisions:
            if decision.node is not None:
                raise errors.EngineCannotRun(
                    f"a branch of the {what} depends on a real quantity ({decision.text}), and the pathwise gradient "
                    "misses its edge",
                    where=decision.where,
                    remedy=_SCORE,
                )


def _split(row: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """The parts of a row, each in its shape."""
    ends = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])
    return [row[start:end].reshape(shape) for start, end, shape in zip(ends, ends[1:], shapes, strict=False)]
