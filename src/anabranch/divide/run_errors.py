"""The errors of a run of a program: what JAX or NumPyro raise, with a remedy, and statements that have no meaning."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import jax

from anabranch import addresses, errors
from anabranch.divide.internals import LeakedTracer, TracedElsewhere
from anabranch.divide.recording import Program, Recording
from anabranch.divide.source_location import frame_of, user_location, where
from anabranch.numpyro_internals import empty_plate

__all__ = ["explained", "unsupported"]

_MAX_DESCRIPTION = 200
"""Characters of the description of a path in a note."""

_FUNCTION = "has no meaning here: a program must be a function of its sites alone"
_UNSUPPORTED = {
    "prng_key": (f"prng_key {_FUNCTION}", "Draw with a sample statement, or make the key from a number of your own"),
    "mutable": (
        f"mutable {_FUNCTION}, and not keep values between runs",
        "Keep the value in a variable of the program",
    ),
    "param": (
        "param has no meaning here: nothing is optimised, and its initial value would stand for an answer",
        "Give it a prior with a sample statement or handlers.lift, or write the number itself (LocScaleReparam takes "
        "it as `centered`)",
    ),
    "control_flow with values given from outside": (
        "handlers.substitute and handlers.condition do not reach into a scan or cond, whose sites have an index each",
        "Observe the values inside, with numpyro.sample(..., obs=...)",
    ),
    "a plate with a subsample": (
        "a plate with a subsample has no meaning here: the evidence of a part is not that of the whole",
        "Give the plate all the data",
    ),
    "a site that handlers.block hides": (
        "handlers.block hides this site from inference, and it has no value",
        "Take it out of the block, or give it a value with handlers.substitute inside",
    ),
}


def unsupported(kind: str, site: str | None) -> NoReturn:
    """Refuse a statement of NumPyro that has no meaning here."""
    what, remedy = _UNSUPPORTED[kind]
    raise errors.UnsupportedStatement(what, site=site, where=user_location(), remedy=remedy)


@contextmanager
def explained(program: Program, recording: Recording) -> Iterator[None]:
    """Turn errors of JAX during a run into errors with a remedy; those of the program itself stay what they are."""
    try:
        with addresses.execution(program.function):
            yield
    except LeakedTracer as error:
        raise errors.NotAFunction(
            "a value computed in one run of the program turned up in another",
            where=where(frame_of(error)),
            remedy="The program must not keep values between runs: remove the global or cache that does, or give a "
            "cached function int(k) instead of k",
        ) from None
    except jax.errors.NonConcreteBooleanIndexError as error:
        raise errors.DecisionInsideTransformation(
            "an array of jax was indexed by a random boolean mask, and the shape of the result would be random",
            where=where(frame_of(error)),
            remedy="Use jnp.where, or make the mask a decision with numpy.asarray(mask)",
        ) from error
    except (TracedElsewhere, jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        raise errors.DecisionInsideTransformation(
            "a JAX transformation (jit, vmap, grad, scan, cond) asked a random value for a concrete answer",
            where=where(frame_of(error)),
            remedy="Use jnp.where or lax.cond inside it, or take the decision outside",
        ) from error
    except errors.AnabranchError:
        raise
    except RecursionError as error:
        raise errors.EndlessProgram(
            "the program's recursion is deeper than Python allows",
            where=where(frame_of(error)),
            remedy="Make the recursion end, write it as a loop, or raise the limit with sys.setrecursionlimit",
        ) from error
    except Exception as error:
        _explain_plate(error)
        path = recording.describe()
        path = path if len(path) <= _MAX_DESCRIPTION else path[: _MAX_DESCRIPTION - 1] + "…"
        error.add_note(f"anabranch: raised by the program on the path: {path}")
        raise


def _explain_plate(error: Exception) -> None:
    """NumPyro asserts that a plate is not empty."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = empty_plate(trace.tb_frame) if trace is not None and isinstance(error, AssertionError) else None
    if name is not None:
        raise errors.UnsupportedStatement(
            "NumPyro does not make a plate of size zero",
            site=name,
            where=where(frame_of(error)),
            remedy="Enter it only if its size is positive, or give it the random size itself, not int(size)",
        ) from None
