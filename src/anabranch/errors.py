"""The errors that Anabranch raises, all subclasses of `AnabranchError`; each names the site and the line."""

import difflib
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

MAX_NAMES = 20
"""Names that a message lists."""


class Place(NamedTuple):
    """A statement of a program: its address, and its line, as "file:line"."""

    name: str
    where: str


class AnabranchError(Exception):
    """Base of all errors of the library.

    what:   the failure, as a clause without its final period
    at:     the statement, anything with a `name` and a line (`where`); or these two alone:
    site:   the address of the site
    where:  the line of the program, as "file:line"
    remedy: what the user can do, as a full sentence
    """

    def __init__(
        self, what: str, *, at: Any = None, site: str | None = None, where: str | None = None, remedy: str | None = None
    ) -> None:
        if at is not None:
            site, where = at.name, at.where
        # Exceptions are pickled as the class, `args` and `__dict__`: the keyword attributes come from `__dict__`.
        super().__init__(what)
        self.what, self.site, self.where, self.remedy = what, site, where, remedy

    def __str__(self) -> str:
        subject = f"{self.where}: " if self.where else ""
        if self.site is not None:
            subject = f"site {self.site!r} ({self.where}): " if self.where else f"site {self.site!r}: "
        sentences = [each for each in (subject + self.what, self.remedy) if each]
        return " ".join(each if each.endswith((".", "!", "?")) else f"{each}." for each in sentences)


class UnsupportedVersion(AnabranchError, ImportError):
    """Raised by `import anabranch` when jax or NumPyro is installed in a version that Anabranch does not work with."""


class BadSetting(AnabranchError, ValueError, TypeError):
    """Raised when a setting or an argument has a wrong type or value; the message says which are allowed."""


class UnnamedSite(AnabranchError, LookupError):
    """Raised when a program with unnamed sites is run by plain NumPyro; name the site."""


class OutsideProgram(AnabranchError, TypeError):
    """Raised when a statement is called outside a program, or the program is no function; give `infer` the function."""


class DuplicateAddress(AnabranchError):
    """Raised when one execution meets an address twice; give each site its own name, or leave the name out."""


class NotAFunction(AnabranchError):
    """Raised when the same decisions meet other addresses; let the program depend on its sites and arguments alone."""


class NoDensity(AnabranchError):
    """Raised when a site's distribution has no `log_prob`; use one that has a density."""


class NoTransform(AnabranchError):
    """Raised when a support has no known bijection from the reals; register one with `biject_to` of NumPyro."""


class ObservedShape(AnabranchError):
    """Raised when an observed value does not fit the shape of its distribution; reshape the one or expand the other."""


class ObservedOutsideSupport(AnabranchError):
    """Raised when an observed value is outside its support on every path; correct the data or the distribution."""


class InvalidParameter(AnabranchError, ValueError):
    """Raised when a constant parameter of a distribution is outside its domain, such as a negative scale; change it."""


class MaskedData(AnabranchError):
    """Raised when data are an array of NumPy with masked entries; mask the distribution, or use `obs_mask`."""


class ImproperSite(AnabranchError):
    """Raised when a mask removes the prior of a latent site from the density, or when an improper prior would have to
    be drawn from; mask the observations alone, and give the site a proper prior."""


class NoRandomVariables(AnabranchError):
    """Raised when the program has no latent random variable to infer; add a `sample` statement."""


class DecisionInsideTransformation(AnabranchError):
    """Raised when the program decides on a random value inside jax.jit, vmap, grad or scan; use `jax.numpy.where`."""


class SiteInsideTransformation(AnabranchError):
    """Raised when a `sample` statement is inside jax.jit, vmap, grad or scan; move it out, or draw a vector before."""


class UnsupportedStatement(AnabranchError):
    """Raised for unsupported statements (`numpyro.prng_key`, `param`, `mutable`, NumPyro's `scan` with values given for
    the whole loop, a plate that subsamples or is empty, `infer`, `find_paths`); the message names the alternative."""


class NoGradient(AnabranchError):
    """Raised for the gradient of an interpreted path; use a method without gradients, or write it with `jax.numpy`."""


class EndlessProgram(AnabranchError):
    """Raised when every execution exceeds `max_sites`, or decides, computes or recurses without end; make it end."""


class StrategyCannotRun(AnabranchError):
    """Raised when a strategy cannot run on a path, such as one without a gradient; use the one in the message."""


class EngineCannotRun(AnabranchError):
    """Raised when an engine cannot run a program, such as one without observations; use the one in the message."""


class LimitTooSmall(AnabranchError):
    """Raised when a limit ended a run before it had an estimate; raise the limit, or make the program cheaper."""


class CompilationTooLong(LimitTooSmall):
    """Raised when compiling a density would exceed the time left; give the run more, or write loops as arrays."""


class UnknownName(AnabranchError, KeyError):
    """Raised when a posterior, a draw or the program (`DCC(start=...)`) has no such name; use one of those in the
    message, or `name in draw` if only some paths have it.

    name: the missing name, if a draw raised the error
    """

    name: str | None = None

    @classmethod
    def among(cls, what: str, name: str, known: Iterable[str]) -> Self:
        """The error with those of the known names that look like this one; with all of them, if none does."""
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=5, cutoff=0.5)
        listed = f"There are: {', '.join(names[:MAX_NAMES])}"
        return cls(what, remedy=f"Did you mean {' or '.join(map(repr, near))}?" if near else listed)


class NotDiscrete(AnabranchError, TypeError):
    """Raised for the probability of a value of a continuous quantity; use the `expectation` of an indicator."""


class NotANumber(AnabranchError, TypeError):
    """Raised when a mean or a quantile of text is asked for."""


class NoDraws(AnabranchError):
    """Raised when no point of positive density was found to draw; give the run more budget, or check the data."""


class NoObservations(AnabranchError):
    """Raised when stacking has no data to predict; add `observe` statements that every execution of the path meets."""


class CannotLoad(AnabranchError):
    """Raised when a folder holds no posterior that this version can read; the message says why."""


class NeedsProgram(AnabranchError):
    """Raised by a posterior loaded without its program, for an answer that runs it; load it with the program."""


class WorkerEnded(AnabranchError):
    """Raised where the visits to a path ended two worker processes: they need more memory, or the program crashes."""


class CannotContinue(AnabranchError):
    """Raised by `Posterior.more` when the run cannot go on: it has gone on before, was loaded without its program, or
    its engine cannot; the message says what to do instead."""
