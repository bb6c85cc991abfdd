"""`ab.infer`: the library's main job."""

import difflib
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar, overload

from anabranch import errors, settings
from anabranch.combine import Posterior, PosteriorWithEvidence
from anabranch.cores import available_cores, one_blas_thread
from anabranch.dcc import DCC
from anabranch.divide import Division, divide, helped
from anabranch.execution import Executor, Threads
from anabranch.limits import TOLERANCE, Limits, Tolerance, interruptible
from anabranch.progress import Progress, make_progress

__all__ = ["Engine", "infer"]


P = TypeVar("P", bound=Posterior)
P_co = TypeVar("P_co", bound=Posterior, covariant=True)


class Engine(Protocol[P_co]):
    """What runs inference on a program: `DCC`, or one of `anabranch.engines`."""

    def run(self, division: Division, limits: Limits, seed: int, workers: int, progress: Progress) -> P_co:
        """Infer until a limit is reached; the division has no paths yet."""


@overload
def infer(
    program: Callable[..., Any],
    *args: Any,
    engine: None = None,
    seed: int = 0,
    budget: int | None = None,
    seconds: float | None = None,
    tolerance: float | Tolerance | None = TOLERANCE,
    progress: bool | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    split: Mapping[str, bool] | Iterable[str] = (),
    max_sites: int = 10_000,
    **kwargs: Any,
) -> PosteriorWithEvidence: ...
@overload
def infer(
    program: Callable[..., Any],
    *args: Any,
    engine: Engine[P],
    seed: int = 0,
    budget: int | None = None,
    seconds: float | None = None,
    tolerance: float | Tolerance | None = TOLERANCE,
    progress: bool | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    split: Mapping[str, bool] | Iterable[str] = (),
    max_sites: int = 10_000,
    **kwargs: Any,
) -> P: ...
def infer(
    program: Callable[..., Any],
    *args: Any,
    engine: Engine[Posterior] | None = None,
    seed: int = 0,
    budget: int | None = None,
    seconds: float | None = None,
    tolerance: float | Tolerance | None = TOLERANCE,
    progress: bool | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    split: Mapping[str, bool] | Iterable[str] = (),
    max_sites: int = 10_000,
    **kwargs: Any,
) -> Posterior:
    """The posterior of a program, given its data.

    Args:
        program: an ordinary Python function over NumPyro distributions.
        args: its arguments, the data.
        engine: how; `DCC()` unless said otherwise, or one of `ab.engines`.
        seed: of all random choices; the same seed gives the same answer, whatever `workers` is.
        budget: evaluations of the density, with or without its gradient; exceeded by 2 % at most. By default 1,000,000,
            and 20,000 for a program that the interpreter runs, since each of them is a run of its Python.
        seconds: exceeded by a second at most, and by a compilation that has begun; the estimates so far are returned.
        tolerance: stop when the Monte Carlo errors of log Z and of the weights of the paths are below it; None: never.
            `ab.Tolerance(0.01, of=f)` stops at that error of the expectation of f, instead.
        progress: whether to show what happens; by default in a terminal or a notebook, and elsewhere as a line in the
            log every half a minute.
        workers: threads of `DCC`; by default as many as the process may use cores. Other engines have one, and so has
            BLAS meanwhile.
        executor: where `DCC` makes its visits, instead: `ab.Threads(2)`, `ab.Processes(2)`, `ab.Ray(...)`. The last two
            also do a share of the executions of a program that the interpreter runs, for every engine.
        checkpoint: a folder to which `DCC` saves the run after its rounds. The same call again goes on to the same
            answer, also after a power cut; `seconds`, `workers` and `executor` may be others.
        split: discrete sites to fix in each path although no decision depends on them (see `find_paths`).
        max_sites: paths with more sites are not followed.
        kwargs: keyword arguments of the program.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> def coin(heads):
        ...     fair = ab.sample("fair", dist.Bernoulli(0.5))
        ...     p = 0.5 if fair else ab.sample("p", dist.Beta(1.0, 1.0))
        ...     ab.observe("heads", dist.Binomial(10, p), heads)
        >>> posterior = ab.infer(coin, 9, seed=0)
        >>> {value: round(p, 2) for value, p in posterior.probability("fair").items()}  # exact: 0.0970
        {0: 0.9, 1: 0.1}
    """
    _check_arguments(program, args, kwargs)
    limits = Limits.given(budget, seconds, tolerance)
    engine = DCC() if engine is None else engine
    settings.functions("run", example="ab.DCC()")("engine", engine)
    workers = settings.whole(1).or_none()("workers", workers) or available_cores()
    executor = _checked_executor(executor, workers)
    if checkpoint is not None and not isinstance(engine, DCC):
        raise errors.BadSetting(
            f"{type(engine).__name__} saves no checkpoints: only DCC(), the default, does",
            remedy="Leave checkpoint out, or the engine",
        )
    if isinstance(tolerance, Tolerance) and not isinstance(engine, DCC):
        raise errors.BadSetting(
            f"{type(engine).__name__} does not stop at the error of an expectation: only DCC(), the default, does",
            remedy="Give a number as the tolerance, or leave the engine out",
        )
    seed, progress = settings.seed()("seed", seed), settings.flag().or_none()("progress", progress)
    with one_blas_thread(), interruptible(limits), make_progress(progress, limits) as display:
        division = divide(program, args, kwargs, split, max_sites)
        if isinstance(engine, DCC):
            return engine.run(division, limits, seed, executor, display, checkpoint)
        with executor.opened(limits) as crew, helped(crew.helpers):
            return engine.run(division, limits, seed, executor.workers, display)


def _checked_executor(executor: Executor | None, workers: int) -> Executor:
    if executor is None:
        return Threads(workers)
    settings.functions("opened", example="ab.Processes(2)")("executor", executor)
    return executor


def _check_arguments(program: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise TypeError for arguments that the program does not take: most are misspelt settings of `infer`."""
    try:
        signature = inspect.signature(program)
    except (TypeError, ValueError):  # not a function, which is said elsewhere, or one that does not say
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(program, "__name__", "the program")
        settings = [each for each in inspect.signature(infer).parameters if each not in ("program", "args", "kwargs")]
        near = [match for given in kwargs for match in difflib.get_close_matches(given, settings, n=1)]
        hint = f" Did you mean {' or '.join(near)}, of infer?" if near else ""
        raise TypeError(f"{name} cannot be called with these arguments: {error}.{hint}") from None
