"""What continues the run of a posterior, in its process or from a file; or says why nothing does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Protocol

from anabranch import errors
from anabranch.limits import Limits
from anabranch.progress import Progress

if TYPE_CHECKING:
    from anabranch.combine.posterior import Posterior

__all__ = ["COPIED", "GONE_ON", "NOT_SAVED", "OTHER_ENGINE", "Continuation", "Refusal", "without_program"]


class Continuation(Protocol):
    """Continues a run."""

    def __call__(self, limits: Limits, workers: int | None, progress: Progress) -> Posterior:
        """The posterior after the run has gone on within limits, with a number of threads (None: where it ran)."""

    def saved(self) -> bytes | Refusal:
        """The contents of a file by which the run goes on in another process, or why there is none."""


@dataclass(frozen=True)
class Refusal:
    """Stands for the continuation of a run that cannot go on here.

    Attributes:
        reason, remedy: why not, as a clause, and what to do instead, as a sentence.
        content: of the file by which it goes on elsewhere; None if it does not.
    """

    reason: str
    remedy: str
    content: bytes | None = None

    def __call__(self, limits: Limits, workers: int | None, progress: Progress) -> NoReturn:
        raise errors.CannotContinue(f"this run cannot go on: {self.reason}", remedy=self.remedy)

    def saved(self) -> bytes | Refusal:
        return self if self.content is None else self.content


GONE_ON = Refusal("it has gone on already", "Call more on the posterior that more returned, or save that")
OTHER_ENGINE = Refusal(
    "its engine does not keep what it would go on from",
    "Run infer again with a larger budget, or with DCC, the default engine, whose runs go on",
)
COPIED = Refusal(
    "this is a copy that was pickled, and what the run goes on from stays in its process",
    'Call more on the original; or save that, and load it: ab.load("run", program, *data).more(...)',
)
NOT_SAVED = Refusal(
    "it was saved by an earlier version of Anabranch, without its visits", "Run infer again with a larger budget"
)


def without_program(name: str, folder: str, content: bytes) -> Refusal:
    """Why a run cannot go on that was loaded without its program."""
    remedy = f'Load it with the program and its data: ab.load("{folder}", {name}, *data).more(...)'
    return Refusal("it was loaded without its program", remedy, content)
