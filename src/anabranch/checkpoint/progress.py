"""How far a run has come that saves its checkpoints, for those who watch it from another process."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path as File

from anabranch import errors
from anabranch.checkpoint.folder import INDEX, PREVIOUS, read_index

__all__ = ["RunProgress", "read_progress"]


@dataclass(frozen=True)
class RunProgress:
    """What the last checkpoint of a run says.

    Attributes:
        program: the name of the program.
        paths, visited: paths found, and estimated.
        log_evidence, log_evidence_sd: so far.
        evaluations, budget: so far, and of the run.
        seconds: how long the run took until then.
        age: seconds since then.
    """

    program: str
    paths: int
    visited: int
    log_evidence: float
    log_evidence_sd: float
    evaluations: int
    budget: int
    seconds: float
    age: float


def read_progress(folder: str | os.PathLike[str]) -> RunProgress:
    """How far the run has come whose checkpoint is in this folder; it may be under way.

    Example:
        >>> import anabranch as ab, tempfile
        >>> from anabranch import programs
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     posterior = ab.infer(programs.branching, 2.0, budget=20_000, checkpoint=f"{folder}/run")
        ...     progress = ab.read_progress(f"{folder}/run")
        >>> progress.program, progress.paths, progress.evaluations == posterior.run.evaluations
        ('branching', 2, True)
    """
    for name in (INDEX, PREVIOUS):  # one takes the place of the other
        try:
            index = read_index(File(folder), name)
        except (OSError, ValueError, KeyError):
            continue
        told = index["progress"]
        return RunProgress(
            index["run"]["program"], told["found"], told["active"], told["log_evidence"], told["log_evidence_sd"],
            told["evaluations"], told["budget"], sum(index["seconds"]), max(time.time() - told["saved"], 0.0),
        )  # fmt: skip
    raise errors.CannotLoad(f"{folder} holds no checkpoint", remedy="Give the folder that was passed to infer")
