"""All runs of the experiments, in several processes, and the figures, tables and page from their records."""

import multiprocessing
import os
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import jax

from anabranch.reproduce import docs_page, figures, page, table
from anabranch.reproduce.archive import ARCHIVE, pack, unpack
from anabranch.reproduce.experiments import EXPERIMENTS
from anabranch.reproduce.records import Record, Task, machine, read_all, run
from anabranch.reproduce.truth import all_truths

__all__ = ["Settings", "reproduce"]


@dataclass(frozen=True)
class Settings:
    """What `anabranch reproduce` was asked for; None stands for all methods, and the runs and the budget of the paper.

    `folder` is for records, figures, tables and the page, which shows the `command`. If there is a file of `records`,
    these are shown, and nothing is run. The numbers and pictures of `pages` are brought up to date.
    """

    experiments: Sequence[str]
    folder: Path
    quick: bool = False
    methods: Sequence[str] | None = None
    runs: int | None = None
    budget: int | None = None
    workers: int = 1
    command: str = "anabranch reproduce"
    records: Path | None = None
    pages: Sequence[Path] = ()

    def tasks(self) -> list[Task]:
        """The runs, by seed: the first run of every method comes before the second ones."""
        tasks = [
            Task(name, method, seed, self.budget_of(name))
            for name in self.experiments
            for experiment in [EXPERIMENTS[name]]
            for method in experiment.engines
            if method in (self.methods or (experiment.quick_methods if self.quick else experiment.engines))
            for seed in range(self.runs or (1 if self.quick else experiment.runs))
        ]
        return sorted(tasks, key=lambda task: task.seed)

    def budget_of(self, experiment: str) -> int:
        return self.budget or (EXPERIMENTS[experiment].quick_budget if self.quick else EXPERIMENTS[experiment].budget)


def reproduce(settings: Settings) -> list[str]:
    """Make the runs without a record, then figures, tables and the page; returns the failures."""
    settings.folder.mkdir(parents=True, exist_ok=True)
    if settings.records is not None:
        _present([each for each in unpack(settings.records) if each["experiment"] in settings.experiments], settings)
        return []
    tasks = settings.tasks()
    waiting = [task for task in tasks if not task.is_done(settings.folder)]
    if len(waiting) < len(tasks):
        print(f"{len(tasks) - len(waiting)} of {len(tasks)} runs have a record already.")
    failures = _run_all(waiting, settings)
    records = read_all(settings.folder, {name: settings.budget_of(name) for name in EXPERIMENTS})
    if records:
        pack(records, settings.folder / ARCHIVE)
        _present(unpack(settings.folder / ARCHIVE), settings)  # the file makes the same again
    return failures


def _run_all(tasks: Sequence[Task], settings: Settings) -> list[str]:
    failures: list[str] = []
    if not tasks:
        return failures
    workers, context = min(settings.workers, len(tasks)), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _prepare, (settings.folder / "compiled",)) as pool:
        futures = {pool.submit(run, task, settings.folder): task for task in tasks}
        try:
            for done in _with_progress(as_completed(futures), len(tasks)):
                failures += _printed(futures[done], done)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            print("\nInterrupted. The records of complete runs are kept; the same command resumes.")
            raise
    return failures


def _prepare(folder: Path) -> None:
    """Set up a worker process: one thread, and a compilation cache that all workers share."""
    os.environ["NPROC"] = "1"  # read by XLA when it starts
    # Every run compiles the same paths.
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def _with_progress(futures: Iterable[Future[Record]], total: int) -> Iterable[Future[Record]]:
    if not sys.stderr.isatty():
        return futures
    from rich.console import Console
    from rich.progress import track

    return track(futures, "runs", total=total, console=Console(stderr=True))


def _printed(task: Task, done: Future[Record]) -> list[str]:
    """Print the result of a run; returns its failure, if it failed."""
    error = done.exception()
    if error is not None:
        print(f"{task}: failed: {error}", flush=True)
        return [f"{task}: {type(error).__name__}: {error}"]
    record = done.result()
    known = "" if record["log_evidence"] is None else f", log Z = {record['log_evidence']:.3f}"
    print(f"{task}: {record['evaluations']:,} evaluations, {record['seconds']:.0f} s{known}", flush=True)
    return []


def _present(records: list[Record], settings: Settings) -> None:
    truths = all_truths()
    figures.draw_all(records, truths, settings.folder)
    tables = table.tables(records, truths)
    table.write(tables, settings.folder)
    print(table.text(tables))
    machines = dict.fromkeys(record.get("machine") or machine() for record in records)
    about = {"date": date.today().isoformat(), "machine": " and ".join(machines), "command": settings.command}
    for each in settings.pages:
        docs_page.update(each, records, truths, settings.folder / "figures")
    print(f"\nThe page is {page.write(settings.folder, records, truths, about)}.")
