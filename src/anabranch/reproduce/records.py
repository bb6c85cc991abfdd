"""One run of one method, and its record.

    FOLDER/runs/EXPERIMENT/METHOD/BUDGET/SEED.json

A record is written when its run is complete, so that an interrupted reproduction resumes where it was.
"""

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import anabranch as ab
from anabranch import errors
from anabranch.reproduce import measures
from anabranch.reproduce.experiments import EXPERIMENTS

__all__ = ["Record", "Task", "commit", "machine", "read_all", "run"]

Record = dict[str, Any]
"""The measures of a run, as in its file."""

_EARLIER = (100, 10)
"""Divisors of the budget, for methods that estimate the evidence at the end only: runs with smaller budgets."""


@dataclass(frozen=True)
class Task:
    """One run: an experiment, a method, a seed and a budget."""

    experiment: str
    method: str
    seed: int
    budget: int

    def file(self, folder: Path) -> Path:
        return folder / "runs" / self.experiment / self.method / str(self.budget) / f"{self.seed}.json"

    def is_done(self, folder: Path) -> bool:
        """True if the folder has a record of it with the same settings."""
        return _read(self.file(folder)) is not None

    def __str__(self) -> str:
        return f"{self.experiment}, {self.method}, run {self.seed}"


def run(task: Task, folder: Path) -> Record:
    """Run, measure, and write the record."""
    experiment = EXPERIMENTS[task.experiment]
    posterior = _infer(task, task.budget)
    engine = experiment.engines[task.method]
    # Importance samples that are drawn after the chains give log Z at the end only.
    at_the_end = isinstance(engine, ab.engines.RandomWalkMH) and engine.importance_samples > 0
    log_z, sd = measures.numbers([posterior.log_evidence, posterior.log_evidence_sd], digits=12)
    record = {
        **asdict(task),
        "settings": posterior.run.settings,
        "version": ab.__version__,
        "commit": commit(),
        "machine": machine(),
        "python": platform.python_version(),
        "evaluations": posterior.run.evaluations,
        "seconds": round(posterior.run.seconds, 2),
        "log_evidence": log_z,
        "log_evidence_sd": sd,
        "paths": sum(solution.estimate is not None for solution in posterior.solutions),
        "history": _by_budget(task, posterior) if at_the_end else measures.history(posterior),
        **experiment.measure(posterior),
    }
    _write(record, task.file(folder))
    return record


@cache
def commit() -> str | None:
    """The commit of the code that runs, with a plus sign if files were changed since; None outside a repository."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        if not git("ls-files", "--", str(Path(__file__))):  # installed inside somebody else's repository
            return None
        return git("rev-parse", "--short=12", "HEAD") + (
            "+" if git("status", "--porcelain", "--", str(here.parent)) else ""
        )
    except (OSError, subprocess.SubprocessError):
        return None


@cache
def machine() -> str:
    """The processor and the number of cores."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        processor = platform.processor() or platform.machine()
    return f"{processor}, {os.cpu_count()} cores"


def _infer(task: Task, budget: int) -> ab.Posterior:
    experiment = EXPERIMENTS[task.experiment]
    # Without a tolerance, so that all methods spend the same budget.
    return ab.infer(experiment.program, *experiment.args, engine=experiment.engines[task.method], seed=task.seed,
                    budget=budget, tolerance=None, progress=False, workers=1)  # fmt: skip


def _by_budget(task: Task, last: ab.Posterior) -> dict[str, list[Any]]:
    """log Z against evaluations, from separate runs with smaller budgets."""
    budgets = [max(task.budget // part, 1) for part in _EARLIER]
    log_z = [*(_log_evidence(task, each) for each in budgets), last.log_evidence]
    return {"evaluations": [*budgets, last.run.evaluations], "log_evidence": measures.numbers(log_z)}


def _log_evidence(task: Task, budget: int) -> float | None:
    """The log evidence of a run with this budget; None if the budget is too small."""
    try:
        return _infer(task, budget).log_evidence
    except errors.LimitTooSmall:
        return None


def _write(record: Record, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    made = file.with_suffix(f".{os.getpid()}.tmp")
    made.write_text(json.dumps(record, allow_nan=False) + "\n", encoding="utf-8")
    made.replace(file)


def read_all(folder: Path, budgets: Mapping[str, int]) -> list[Record]:
    """The records in a folder with the budget of their experiment, in the order of their files."""
    files = [
        file
        for experiment, budget in budgets.items()
        for method in EXPERIMENTS[experiment].engines
        for file in sorted(folder.glob(f"runs/{experiment}/{method}/{budget}/*.json"))
    ]
    return [record for file in files if (record := _read(file)) is not None]


def _read(file: Path) -> Record | None:
    """A record; None if it is missing or incomplete, or if its method has other settings today."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        engine = EXPERIMENTS[record["experiment"]].engines[record["method"]]
        return record if record["settings"] == repr(engine) else None
    except (FileNotFoundError, ValueError, LookupError, TypeError):
        return None
