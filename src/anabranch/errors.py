"""The errors Anabranch raises, all of them subclasses of `AnabranchError`.

Each carries the site and the line of the program it is about, because a message that names neither is of little
help in a program whose statements run a random number of times.
"""

from __future__ import annotations


class AnabranchError(Exception):
    """Base of all errors of the library; catch it to handle any of them, and read `remedy` for what to do.

    what:   what went wrong, as a clause without its final period
    site:   address of the site it went wrong at
    where:  place in the program, as "file:line"
    remedy: what the user can do about it, as a full sentence
    """

    def __init__(
        self, what: str, *, site: str | None = None, where: str | None = None, remedy: str | None = None
    ) -> None:
        # Exceptions are pickled as the class, `args` and `__dict__`: with only `what` among the arguments, the
        # keyword attributes come back from `__dict__`.
        super().__init__(what)
        self.what = what
        self.site = site
        self.where = where
        self.remedy = remedy

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
    """Raised when a setting or an argument of the library is not what it must be; the message says what that is, and
    what was given."""


class UnnamedSite(AnabranchError, LookupError):
    """Raised when a site without a name is met outside an execution by Anabranch; give the site a name to run the
    program under plain NumPyro."""


class OutsideProgram(AnabranchError, TypeError):
    """Raised when a statement of ours is called where no program runs, or when something else than a function is given
    as the program; give `infer` the function itself, not what calling it returns."""


class DuplicateAddress(AnabranchError):
    """Raised when one execution meets the same address twice; give each site its own name (put the loop counter into
    it, for example), or leave the name out."""


class NotAFunction(AnabranchError):
    """Raised when the program is not a function of its random values: replaying the same decisions met other
    addresses; remove what else the program depends on, such as global state, a clock or another random generator."""


class NoDensity(AnabranchError):
    """Raised when a site's distribution has no `log_prob`; use a distribution with a density, or compute the value
    from sites that have one."""


class NoTransform(AnabranchError):
    """Raised when no bijection from the real numbers to the support of a continuous site is known; register one with
    `numpyro.distributions.biject_to`, or write the site as a transformation of another distribution."""


class ObservedShape(AnabranchError):
    """Raised when the shape of an observed value does not fit the shape of its distribution; reshape the data, or
    expand the distribution."""


class ObservedOutsideSupport(AnabranchError):
    """Raised when an observed value lies outside the support of its distribution, on every path through it; correct
    the data or choose a distribution that can produce it."""


class InvalidParameter(AnabranchError, ValueError):
    """Raised when a parameter of a distribution that is not random lies outside its domain, such as a negative scale or
    probabilities that do not sum to one; correct it."""


class MaskedData(AnabranchError):
    """Raised when data are a masked array of NumPy, with entries masked; observe what is there, mask the distribution,
    or use `obs_mask`."""


class ImproperSite(AnabranchError):
    """Raised when a mask takes the prior of a latent site out of the density and so leaves no distribution; put the
    mask on the observations alone."""


class NoRandomVariables(AnabranchError):
    """Raised when the program has no latent random variable to infer; add a `sample` statement."""


class DecisionInsideTransformation(AnabranchError):
    """Raised when the program decides on a random value inside jax.jit, vmap, grad or scan; move the `if` or the loop
    out of the transformed function, or write it with `jax.numpy.where`."""


class SiteInsideTransformation(AnabranchError):
    """Raised when a `sample` statement is met inside jax.jit, vmap, grad or scan; move the statement out of the
    transformed function, or draw a vector with `.expand` before it."""


class UnsupportedStatement(AnabranchError):
    """Raised for statements that have no meaning in a program (`numpyro.prng_key`, `param`, `mutable`, NumPyro's `scan`
    and `cond`, a plate that subsamples or is empty, `infer` and `find_paths`); write what the message says."""


class NoGradient(AnabranchError):
    """Raised when the gradient of a path is asked for that is run by the interpreter and so has none; use a method
    that needs no gradients, or write the computation with `jax.numpy`."""


class EndlessProgram(AnabranchError):
    """Raised when the program does not end: every execution draws more than `max_sites` sites, or it asks for ever, or
    it computes for ever and does neither; make its loop end, or raise `max_sites`."""


class StrategyCannotRun(AnabranchError):
    """Raised when a local strategy does not suit a path, such as one with gradients on a path without; choose the one
    that the message names, or leave the choice to `Auto`."""


class EngineCannotRun(AnabranchError):
    """Raised when an engine does not suit a program, such as a particle filter where there is nothing to observe; use
    the one that the message names, or leave the choice to `infer`."""


class LimitTooSmall(AnabranchError):
    """Raised when a limit ended a run before it had anything to say; give it more, or make the program cheaper as the
    message says."""


class CompilationTooLong(LimitTooSmall):
    """Raised when compiling the density of a path would take longer than the time that is left; give the run more
    seconds, or write the program's loop as arrays."""


class UnknownName(AnabranchError, KeyError):
    """Raised when a posterior or a draw is asked for a name that it does not have; use one of those in the message, or
    `name in draw` where only some paths have it.

    name: what was asked for, where a draw was asked
    """

    name: str | None = None


class NotDiscrete(AnabranchError, TypeError):
    """Raised when the probability of each value is asked for of a quantity that has no countable set of them; use
    `expectation`, of an indicator if you want the probability of a range."""


class NoDraws(AnabranchError):
    """Raised when a posterior has no draws to answer from, because no path with positive density was found; give the
    run more budget, or check the data against the program."""


class NoObservations(AnabranchError):
    """Raised when stacking has no data to predict; add `observe` statements that every execution of the path meets."""


class CannotLoad(AnabranchError):
    """Raised when a folder does not hold a posterior that this version can read; the message says what is wrong with
    it."""
