"""The errors that Anabranch raises, all subclasses of `AnabranchError`; each names the site and the line."""

from __future__ import annotations


class AnabranchError(Exception):
    """Base of all errors of the library.

    what:   the failure, as a clause without its final period
    site:   the address of the site
    where:  the line of the program, as "file:line"
    remedy: what the user can do, as a full sentence
    """

    def __init__(
        self, what: str, *, site: str | None = None, where: str | None = None, remedy: str | None = None
    ) -> None:
        # Exceptions are pickled as the class, `args` and `__dict__`: the keyword attributes come from `__dict__`.
        super().__init__(what)
        self.what, self.site, self.where, self.remedy = what, site, where, remedy

    def __str__(self) -> str:
        sentences = [self._subject() + self.what, self.remedy]
        return " ".join(_ended(sentence) for sentence in sentences if sentence)

    def _subject(self) -> str:
        if self.site is not None:
            place = f" ({self.where})" if self.where else ""
            return f"site {self.site!r}{place}: "
        return f"{self.where}: " if self.where else ""


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "!", "?")) else sentence + "."


class UnsupportedVersion(AnabranchError, ImportError):
    """Raised by `import anabranch` when jax or NumPyro is installed in a version that Anabranch does not work with."""


class BadSetting(AnabranchError, ValueError, TypeError):
    """Raised when a setting or an argument has a wrong type or value; the message says which are allowed."""


class UnnamedSite(AnabranchError, LookupError):
    """Raised when a program with unnamed sites is run by plain NumPyro; name the site."""


class OutsideProgram(AnabranchError, TypeError):
    """Raised when `sample`, `observe`, `factor` or `deterministic` is called outside a program, or the program is no
    function; give `infer` the function itself, not its return value."""


class DuplicateAddress(AnabranchError):
    """Raised when one execution meets an address twice; give each site its own name (with the loop counter in it), or
    leave the name out."""


class NotAFunction(AnabranchError):
    """Raised when a replay of the same decisions meets other addresses; make the program depend on its random values
    and arguments alone, not on global state, a clock or another random generator."""


class NoDensity(AnabranchError):
    """Raised when a site's distribution has no `log_prob`; use a distribution with a density, or compute the value
    from sites that have one."""


class NoTransform(AnabranchError):
    """Raised when the support of a continuous site has no known bijection from the real numbers; register one with
    `numpyro.distributions.biject_to`, or write the site as a transformation of another distribution."""


class ObservedShape(AnabranchError):
    """Raised when the shape of an observed value does not fit the shape of its distribution; reshape the data, or
    expand the distribution."""


class ObservedOutsideSupport(AnabranchError):
    """Raised when an observed value lies outside the support of its distribution, on every path through it; correct
    the data or choose a distribution that can produce it."""


class InvalidParameter(AnabranchError, ValueError):
    """Raised when a constant parameter of a distribution lies outside its domain, such as a negative scale or
    probabilities that do not sum to one; correct it."""


class MaskedData(AnabranchError):
    """Raised when data are a masked array of NumPy with masked entries; observe the others, mask the distribution, or
    use `obs_mask`."""


class ImproperSite(AnabranchError):
    """Raised when a mask removes the prior of a latent site from the density; mask the observations alone."""


class NoRandomVariables(AnabranchError):
    """Raised when the program has no latent random variable to infer; add a `sample` statement."""


class DecisionInsideTransformation(AnabranchError):
    """Raised when the program decides on a random value inside jax.jit, vmap, grad or scan; move the `if` or the loop
    out of the transformed function, or write it with `jax.numpy.where`."""


class SiteInsideTransformation(AnabranchError):
    """Raised when a `sample` statement is met inside jax.jit, vmap, grad or scan; move the statement out of the
    transformed function, or draw a vector with `.expand` before it."""


class UnsupportedStatement(AnabranchError):
    """Raised for unsupported statements (`numpyro.prng_key`, `param`, `mutable`, NumPyro's `scan` and `cond`, a plate
    that subsamples or is empty, `infer` and `find_paths`); the message names the alternative."""


class NoGradient(AnabranchError):
    """Raised for the gradient of an interpreted path; use a method without gradients, or write the computation with
    `jax.numpy`."""


class EndlessProgram(AnabranchError):
    """Raised when every execution draws more than `max_sites` sites, makes decisions without end, computes without end,
    or recurses deeper than Python allows; make the program's loop or recursion end, or raise the limit."""


class StrategyCannotRun(AnabranchError):
    """Raised when a strategy cannot run on a path, such as one that needs a gradient on a path without; use the one
    that the message names, or `Auto`."""


class EngineCannotRun(AnabranchError):
    """Raised when an engine cannot run a program, such as a particle filter without observations; use the one that the
    message names, or the default of `infer`."""


class LimitTooSmall(AnabranchError):
    """Raised when a limit ended a run before it had an estimate; raise the limit, or make the program cheaper."""


class CompilationTooLong(LimitTooSmall):
    """Raised when compiling the density of a path would take longer than the time that is left; give the run more
    seconds, or write the program's loop as arrays."""


class UnknownName(AnabranchError, KeyError):
    """Raised when a posterior or a draw has no such name; use one of those in the message, or `name in draw` if only
    some paths have it.

    name: the missing name, if a draw raised the error
    """

    name: str | None = None


class NotDiscrete(AnabranchError, TypeError):
    """Raised for the probabilities of the values of a continuous quantity; use `expectation`, of an indicator for the
    probability of a range."""


class NoDraws(AnabranchError):
    """Raised when a posterior has no draws, because no point of positive density was found; give the run more budget,
    or check the data against the program."""


class NoObservations(AnabranchError):
    """Raised when stacking has no data to predict; add `observe` statements that every execution of the path meets."""


class CannotLoad(AnabranchError):
    """Raised when a folder holds no posterior that this version can read; the message says why."""
