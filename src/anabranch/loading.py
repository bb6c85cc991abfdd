"""A saved posterior is loaded, to answer questions and to go on."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any, cast

from anabranch import errors
from anabranch.checkpoint import SavedRun
from anabranch.combine import Posterior, saving

__all__ = ["load"]


def load(
    folder: str | os.PathLike[str], program: Callable[..., Any] | str | None = None, *args: Any, **kwargs: Any
) -> Posterior:
    """A posterior that `Posterior.save` wrote. No code from the folder is run.

    Args:
        folder: where it was saved.
        program: the program, or its name as "module:function", for the answers that run it: predictions, densities,
            the program's return value, and for the run to go on (`more`). Without it there are the evidence, the paths,
            probabilities, expectations and the draws by name.
        args: the arguments of the program, those of the run.
        kwargs: its keyword arguments.

    Example:
        >>> import anabranch as ab, tempfile
        >>> from anabranch import programs
        >>> posterior = ab.infer(programs.branching, 2.0, budget=20_000)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     posterior.save(f"{folder}/run")
        ...     again = ab.load(f"{folder}/run")
        ...     whole = ab.load(f"{folder}/run", programs.branching, 2.0)
        >>> again.log_evidence == posterior.log_evidence, whole.replicate(5)["y"].shape
        (True, (5,))
        >>> whole.more(budget=20_000).log_evidence == posterior.more(budget=20_000).log_evidence
        True
    """
    function = _named(program) if isinstance(program, str) else program
    posterior = saving.load(folder, function, args, kwargs)
    content = posterior.resume.saved()
    if function is not None and isinstance(content, bytes):
        posterior.resume = SavedRun(content, function, args, kwargs, posterior.run.seconds)
    return posterior


def _named(reference: str) -> Callable[..., Any]:
    """The function that "module:function" names."""
    module, _, name = reference.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise errors.CannotLoad(
            f"there is no program {reference!r}: {error}", remedy='Give the function, or its name as "module:function"'
        ) from error
    return cast(Callable[..., Any], found)
