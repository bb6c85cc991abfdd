"""One run of one method, and the file that it leaves behind.

    FOLDER/runs/EXPERIMENT/METHOD/BUDGET/SEED.json

A file is written when its run is complete, so that a reproduction that was interrupted goes on where it was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anabranch as ab
from anabranch import errors
from anabranch.inference import Engine
from anabranch.reproduce import measures
from anabranch.reproduce.experiments import EXPERIMENTS

__all__ = ["Record", "Task", "read_all", "run"]

Record = dict[str, Any]
"""What a run left behind, as it is in its file."""

_EARLIER = (100, 10)
"""What the budget is divided by for the runs that show how an estimate made at the end depends on it."""


@dataclass(frozen=True)
class Task:
    """A run that is to be made."""

    experiment: str
    method: str
    seed: int
    budget: int

    def file(self, folder: Path) -> Path:
        return folder / "runs" / self.experiment / self.method / str(self.budget) / f"{self.seed}.json"

    def is_done(self, folder: Path) -> bool:
        """Whether there is a record of it, made with the same settings."""
        return _read(self.file(folder)) is not None

    def __str__(self) -> str:
        return f"{self.experiment}, {self.method}, run {self.seed}"


def run(task: Task, folder: Path) -> Record:
    """Run, measure, and write the record."""
    experiment = EXPERIMENTS[task.experiment]
    posterior = _infer(task, task.budget)
    at_the_end = _estimates_at_the_end(experiment.engines[task.method])
    history = _by_budget(task, posterior) if at_the_end else measures.history(posterior)
    log_z, sd = measures.numbers([_or_nan(posterior.log_evidence), _or_nan(posterior.log_evidence_sd)], digits=12)
    record = {
        "experiment": task.experiment,
        "method": task.method,
        "seed": task.seed,
        "budget": task.budget,
        "settings": posterior.run.settings,
        "version": ab.__version__,
        "evaluations": posterior.run.evaluations,
        "seconds": round(posterior.run.seconds, 2),
        "log_evidence": log_z,
        "log_evidence_sd": sd,
        "paths": sum(solution.estimate is not None for solution in posterior.solutions),
        "history": history,
        **experiment.measure(posterior),
    }
    _write(record, task.file(folder))
    return record


def _infer(task: Task, budget: int) -> ab.Posterior:
    experiment = EXPERIMENTS[task.experiment]
    # Without a tolerance, at which ours would stop long before: all have the same budget.
    return ab.infer(experiment.program, *experiment.args, engine=experiment.engines[task.method], seed=task.seed,
                    budget=budget, tolerance=None, progress=False, workers=1)  # fmt: skip


def _estimates_at_the_end(engine: Engine) -> bool:
    """Whether the evidence comes from importance samples that are drawn when the chains have ended."""
    return isinstance(engine, ab.engines.RandomWalkMH) and engine.importance_samples > 0


def _by_budget(task: Task, last: ab.Posterior) -> dict[str, list[Any]]:
    """What an estimate made at the end would have been after fewer evaluations, from runs of their own."""
    budgets = [max(task.budget // part, 1) for part in _EARLIER]
    log_z = [*(_log_evidence(task, each) for each in budgets), _or_nan(last.log_evidence)]
    return {"evaluations": [*budgets, last.run.evaluations], "log_evidence": measures.numbers(log_z)}


def _log_evidence(task: Task, budget: int) -> float:
    """The log evidence of a run with this budget; NaN where that is too small for any."""
    try:
        return _or_nan(_infer(task, budget).log_evidence)
    except errors.LimitTooSmall:
        return _or_nan(None)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _write(record: Record, file: Path) -> None:
    """All of it or nothing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    made = file.with_suffix(f".{os.getpid()}.tmp")
    made.write_text(json.dumps(record, allow_nan=False) + "\n", encoding="utf-8")
    made.replace(file)


def read_all(folder: Path, budgets: Mapping[str, int]) -> list[Record]:
    """The records in a folder of runs with the budget of their experiment, in the order of their files."""
    files = [
        file
        for experiment, budget in budgets.items()
        for method in EXPERIMENTS[experiment].engines
        for file in sorted(folder.glob(f"runs/{experiment}/{method}/{budget}/*.json"))
    ]
    return [record for file in files if (record := _read(file)) is not None]


def _read(file: Path) -> Record | None:
    """A record; None if there is none, if it was cut short, or if its method has other settings today."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        engine = EXPERIMENTS[record["experiment"]].engines[record["method"]]
        return record if record["settings"] == repr(engine) else None
    except (FileNotFoundError, ValueError, LookupError, TypeError):
        return None
