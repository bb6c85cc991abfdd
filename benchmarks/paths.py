"""How well log Z of one path is estimated, on densities whose log Z is known, beside other samplers.

    python benchmarks/paths.py --only shell --samplers ours,dynesty --seeds 3 --budget 100000
    python benchmarks/paths.py --samplers ours,dynesty,dynesty-equal,nautilus,pocomc    hours, or days
    python benchmarks/paths.py --calibrate --only forty --seeds 10                      ours alone, and its error bars
    python benchmarks/paths.py --report                                                 from the records alone

The densities are programs, in `densities.py`. A sampler of others runs at its own defaults, or, as `dynesty-equal`,
with as many evaluations of the likelihood as ours took with the same seed and budget, or the nearest number that it
allows (`peers.py`, which also says how it sees a program; `pip install -e '.[peers]'`). The runs of one sampler on one
density are made in a process of their own, one after the other, which is ended when the time of a run is over; two such
processes at a time with `--jobs 2`. Each run is one line of the file of records, and a run that is there already is not
made again. Beside that file are a table in Markdown and a picture.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

ACCURACY = 1e-6
"""The references are as accurate as that: an answer that claims to be exact may differ by so much."""
CLOSE = 0.02
"""Nats from the truth within which an answer is called close."""
PATIENCE = 10
"""A process that gets no processor is ended after so many times its limit on the clock."""
ANSWER = "answer: "
"""How a line begins in which a process gives an answer."""
PEERS = ("dynesty", "nautilus", "pocomc")
SAMPLERS = ("ours", *PEERS, *(f"{name}-equal" for name in PEERS))


# Records --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What is asked of one process. A sampler at its own defaults has no budget."""

    density: str
    sampler: str
    seed: int
    budget: int | None


@dataclass(frozen=True)
class Record:
    """What a run gave.

    `seconds` are those of the clock, `processor_seconds` those of all threads, which a busy machine does not stretch.
    `failed` says why there is no answer; `peer_sees` in which coordinates a peer sampled.
    """

    density: str
    sampler: str
    seed: int
    budget: int | None
    truth: float
    log_evidence: float | None = None
    sd: float | None = None
    evaluations: int | None = None
    seconds: float | None = None
    processor_seconds: float | None = None
    warnings: tuple[str, ...] = ()
    failed: str | None = None
    peer_sees: str | None = None

    @property
    def run(self) -> Run:
        return Run(self.density, self.sampler, self.seed, self.budget)

    @property
    def error(self) -> float:
        """Estimate minus truth; infinite without an answer."""
        return np.inf if self.log_evidence is None else self.log_evidence - self.truth

    @property
    def claimed(self) -> float:
        """The standard error that the sampler itself reports; zero without an answer."""
        return 0.0 if self.sd is None else self.sd

    @property
    def z(self) -> float:
        if abs(self.error) < ACCURACY:
            return 0.0
        return self.error / self.claimed if self.claimed > 0 else float(np.copysign(np.inf, self.error))

    @property
    def names_a_path(self) -> bool:
        return any("path (" in text.lower() for text in self.warnings)


def load(file: Path) -> dict[Run, Record]:
    if not file.exists():
        return {}
    records = [Record(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    return {record.run: record for record in records}


def save(file: Path, record: Record) -> None:
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(asdict(record)) + "\n")


# One run, in a process of its own -------------------------------------------------------------------------------------


def answer_of(run: Run) -> dict[str, Any]:
    """The answer of one run, for the child process."""
    from densities import BY_NAME

    density = BY_NAME[run.density]
    began, busy = time.monotonic(), time.process_time()
    if run.sampler == "ours":
        answer = answer_of_ours(density, run)
    else:
        import peers

        answer = peers.answer(density, run.sampler.removesuffix("-equal"), run.seed, run.budget)
    return answer | {"seconds": time.monotonic() - began, "processor_seconds": time.process_time() - busy}


def answer_of_ours(density: Any, run: Run) -> dict[str, Any]:
    import anabranch as ab

    assert run.budget is not None
    posterior = ab.infer(density.program, *density.args, seed=run.seed, budget=run.budget, progress=False)
    return {
        "log_evidence": posterior.log_evidence,
        "sd": posterior.log_evidence_sd,
        "evaluations": posterior.run.evaluations,
        "warnings": posterior.warnings,
    }


def child(runs: Sequence[Run], limit: int) -> None:
    """Print a line for each run: its answer, or the error. The system ends the process when the time of one is over."""
    for run in runs:
        end = int(time.process_time()) + limit
        resource.setrlimit(resource.RLIMIT_CPU, (end, resource.RLIM_INFINITY))
        try:
            answer = answer_of(run)
        except Exception as error:  # whatever a sampler raises is its answer
            answer = {"failed": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
        print(f"\n{ANSWER}{json.dumps(answer)}", flush=True)


def measure(runs: Sequence[Run], limit: int) -> list[Record]:
    """The records of runs of one sampler on one density, each of which may take so many seconds of a processor.

    Those that an ended process leaves are made in another one.
    """
    from densities import BY_NAME

    command = [sys.executable, __file__, "--child", json.dumps([asdict(run) for run in runs]), "--timeout", str(limit)]
    began, patience = time.monotonic(), PATIENCE * limit * len(runs)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience, env=_one_thread())
        answers = _answers(done.stdout)
        reason = _reason(done, limit)
    except subprocess.TimeoutExpired as ended:
        answers = _answers((ended.stdout or b"").decode())
        reason = f"no answer after {patience} s"
    if len(answers) < len(runs):
        answers.append({"failed": reason, "seconds": time.monotonic() - began})
    made = [
        Record(**asdict(run), truth=BY_NAME[run.density].log_evidence, **answer)
        for run, answer in zip(runs, answers, strict=False)
    ]
    rest = runs[len(made) :]
    return made + (measure(rest, limit) if rest else [])


def _answers(printed: str) -> list[dict[str, Any]]:
    lines = (line for line in printed.splitlines() if line.startswith(ANSWER))
    return [json.loads(line.removeprefix(ANSWER)) for line in lines]


def _reason(done: subprocess.CompletedProcess[str], limit: int) -> str:
    """How a process ended."""
    if done.returncode == -signal.SIGXCPU:
        return f"no answer after {limit} s of a processor"
    return " ".join(done.stderr.split())[-300:] or f"exit {done.returncode}"


def _one_thread() -> dict[str, str]:
    """The samplers' linear algebra and neural networks take one core each, so that times can be compared."""
    return os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


# All runs -------------------------------------------------------------------------------------------------------------


def planned(
    densities: Iterable[str], samplers: Sequence[str], seeds: Iterable[int], budgets: Sequence[int]
) -> list[Run]:
    """Every run that is asked for; those of ours come first where others take their number of evaluations."""
    samplers = sorted(samplers, key=SAMPLERS.index)
    if "ours" not in samplers and any(name.endswith("-equal") for name in samplers):
        samplers = ["ours", *samplers]
    runs = [
        Run(density, sampler, seed, None if sampler in PEERS else budget)
        for density in densities
        for seed in seeds
        for budget in budgets
        for sampler in samplers
    ]
    return list(dict.fromkeys(runs))


def make(runs: Sequence[Run], file: Path, limit: int, jobs: int = 1) -> dict[Run, Record]:
    """Make the runs that the file does not have yet, in so many processes at a time, and give all its records."""
    records = load(file)
    missing = [run for run in runs if run not in records]
    # Ours first, since others may take its number of evaluations.
    for stage in (lambda run: run.sampler == "ours", lambda run: run.sampler != "ours"):
        groups = grouped(filter(stage, missing), lambda run: (run.density, run.sampler))
        with ThreadPoolExecutor(jobs) as pool:
            futures = [pool.submit(measure_equal, group, records, limit) for group in groups.values()]
            for future in as_completed(futures):
                for record in future.result():
                    records[record.run] = record
                    save(file, record)
                    print(line_of(record), flush=True)
    return records


def measure_equal(runs: Sequence[Run], records: Mapping[Run, Record], limit: int) -> list[Record]:
    """The records of runs; those of `-equal` samplers with the evaluations that ours took, where it has an answer."""
    if not runs[0].sampler.endswith("-equal"):
        return measure(runs, limit)
    ours = [records[replace(run, sampler="ours")].evaluations for run in runs]
    asked = [(run, replace(run, budget=equal)) for run, equal in zip(runs, ours, strict=True) if equal is not None]
    made = measure([equal for _, equal in asked], limit) if asked else []
    return [replace(record, budget=run.budget) for (run, _), record in zip(asked, made, strict=True)]


# Tables and the picture -----------------------------------------------------------------------------------------------


HEADER = (
    "density",
    "sampler",
    "seed",
    "budget",
    "error",
    "claimed",
    "z",
    "evaluations",
    "seconds",
    "of a processor",
    "warnings",
)


def table(rows: Iterable[Sequence[Any]], *header: str) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def cells(record: Record) -> list[str]:
    budget = "default" if record.budget is None else f"{record.budget:,}"
    about = [record.density, record.sampler, str(record.seed), budget]
    seconds = [f"{record.seconds:.1f}", "" if record.processor_seconds is None else f"{record.processor_seconds:.1f}"]
    if record.log_evidence is None:
        return [*about, f"failed: {record.failed}", "", "", "", *seconds, ""]
    return [*about, f"{record.error:+.4f}", f"{record.claimed:.4f}", f"{record.z:+.1f}",
            f"{record.evaluations:,}", *seconds, brief(record)]  # fmt: skip


def brief(record: Record) -> str:
    """What the warnings are about."""
    if not record.warnings:
        return ""
    return "names the path" if record.names_a_path else "yes"


def line_of(record: Record) -> str:
    return "| " + " | ".join(cells(record)) + " |"


def in_order(records: Iterable[Record]) -> list[Record]:
    from densities import BY_NAME

    names = list(BY_NAME)
    return sorted(records, key=lambda r: (names.index(r.density), r.budget or 0, SAMPLERS.index(r.sampler), r.seed))


def grouped(items: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    out: dict[Any, list[T]] = {}
    for item in items:
        out.setdefault(key(item), []).append(item)
    return out


def by_sampler(records: Iterable[Record]) -> str:
    """One row for each sampler and budget, over all densities and seeds."""
    rows = []
    for (sampler, budget), group in grouped(records, lambda r: (r.sampler, r.budget)).items():
        answered = [record for record in group if record.log_evidence is not None]
        honest = [record for record in answered if abs(record.z) < 4]
        rows.append([sampler, "default" if budget is None else f"{budget:,}", len(group), len(answered), len(honest),
                     close(group), f"{np.median([abs(r.error) for r in group]):.4f}",
                     f"{np.median([r.evaluations for r in answered] or [np.nan]):,.0f}",
                     f"{np.median([r.seconds for r in group]):.1f}",
                     f"{np.median([r.processor_seconds for r in answered] or [np.nan]):.1f}"])  # fmt: skip
    return table(rows, "sampler", "budget", "runs", "answers", "error below 4 claimed errors",
                 f"densities within {CLOSE} nats", "median error", "median evaluations", "median seconds",
                 "of a processor")  # fmt: skip


def close(records: Iterable[Record]) -> str:
    """How many densities have a median error, over seeds, below CLOSE."""
    by_density = grouped(records, lambda r: r.density)
    within = [np.median([abs(record.error) for record in group]) < CLOSE for group in by_density.values()]
    return f"{sum(within)} of {len(within)}"


def calibration(records: Iterable[Record]) -> str:
    """How far the error bars of ours can be trusted, for each budget."""
    rows = []
    for budget, group in grouped(records, lambda r: r.budget).items():
        answered = [record for record in group if record.log_evidence is not None]
        silent = [record for record in answered if not record.warnings]
        held = [abs(record.z) < 4 for record in answered]
        said = [abs(record.z) < 4 or record.names_a_path for record in answered]
        rows.append([f"{budget:,}", len(group), len(group) - len(answered), share(held), share(said),
                     share([abs(r.z) < 1.96 for r in answered]), share([abs(r.z) < 1.96 for r in silent]),
                     close(group)])  # fmt: skip
    return table(rows, "budget", "runs", "no answer", "error below 4 claimed errors",
                 "or a warning that names the path", "95 % intervals that cover, all",
                 "95 % intervals that cover, without a warning",
                 f"densities within {CLOSE} nats (median over seeds)")  # fmt: skip


def share(held: Sequence[bool]) -> str:
    return f"{sum(held)} of {len(held)} ({100 * np.mean(held):.1f} %)" if held else "none"


def report(records: Sequence[Record], file: Path, calibrate: bool) -> None:
    """Write the table and the picture beside the file of records, and print the summary."""
    records = in_order(records)
    if not records:
        raise SystemExit(f"no records of this kind in {file}")
    ours = [record for record in records if record.sampler == "ours"]
    summary = calibration(ours) if calibrate else by_sampler(records)
    full = table(map(cells, records), *HEADER)
    notes = sorted(
        {f"{r.density}: {r.sampler.removesuffix('-equal')} saw {r.peer_sees}" for r in records if r.peer_sees}
    )
    text = "\n\n".join([summary, full, "\n".join(f"- {note}" for note in notes)])
    file.with_suffix(".md").write_text(text.rstrip() + "\n", encoding="utf-8")
    picture(ours if calibrate else records, file.with_suffix(".png"))
    print(f"\n{summary}\n\n{file.with_suffix('.md')}, {file.with_suffix('.png')}")


def picture(records: Sequence[Record], file: Path) -> None:
    """Errors (dots) and claimed errors (bars) on a log scale: a row for each density, a colour for each sampler."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(record.density for record in records))
    groups = grouped(records, lambda r: (r.sampler, r.budget))
    figure, axes = plt.subplots(figsize=(8, 1.5 + 0.22 * len(names)), layout="constrained")
    for i, ((sampler, budget), group) in enumerate(groups.items()):
        rows = np.array([names.index(r.density) for r in group]) + 0.7 * (i + 0.5) / len(groups) - 0.35
        label = sampler if budget is None else f"{sampler}, {budget:,}"
        shown = [np.clip(abs(r.error), 1e-5, 1e3) for r in group]
        axes.plot(shown, rows, ".", color=f"C{i}", label=label, markersize=5)
        axes.plot(np.clip([r.claimed for r in group], 1e-5, 1e3), rows, "|", color=f"C{i}", alpha=0.6, markersize=5)
    axes.axvline(CLOSE, color="0.8", zorder=0)
    axes.set(xscale="log", yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.5),
             xlabel="nats: error of log Z (dot), claimed error (bar); at the edge: exact, or no answer")  # fmt: skip
    axes.tick_params(labelsize=7)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=7)
    figure.savefig(file, dpi=150)
    plt.close(figure)


# The command ----------------------------------------------------------------------------------------------------------


def listed(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def selected(only: str) -> list[str]:
    """The densities with one of these names or kinds, or whose names begin with it; all of them, or the forty."""
    from densities import BY_NAME, DENSITIES, FORTY

    if only == "forty":
        return [density.name for density in FORTY]
    wanted = listed(only)

    def is_meant(density: Any, word: str) -> bool:
        begins = density.name.startswith(word) and word not in BY_NAME
        return word in (density.name, density.kind) or begins

    chosen = [d.name for d in DENSITIES if not wanted or any(is_meant(d, word) for word in wanted)]
    if not chosen:
        raise SystemExit(f"no density is called {only}; there are {', '.join(BY_NAME)}")
    return chosen


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="densities or kinds, with commas: shell-9,funnel; or forty")
    parser.add_argument("--samplers", default="ours", help=", ".join(SAMPLERS))
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--budget", default="100000,1000000", help="of ours, with commas")
    parser.add_argument("--timeout", type=int, default=900, help="seconds of a processor that one run may take")
    parser.add_argument("--out", type=Path, default=Path("paths.jsonl"), help="the file of records")
    parser.add_argument("--calibrate", action="store_true", help="ours alone, and how far its error bars hold")
    parser.add_argument("--report", action="store_true", help="no runs: the table and the picture of the records")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.samplers = ["ours"] if given.calibrate else listed(given.samplers)
    unknown = set(given.samplers) - set(SAMPLERS)
    if unknown:
        parser.error(f"no sampler is called {min(unknown)}; there are {', '.join(SAMPLERS)}")
    return given


def main() -> None:
    given = options()
    if given.child:
        child([Run(**run) for run in json.loads(given.child)], given.timeout)
        return
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    runs = planned(selected(given.only), given.samplers, seeds, [int(b) for b in listed(given.budget)])
    records = load(given.out) if given.report else make(runs, given.out, given.timeout, given.jobs)
    report([record for run, record in records.items() if run in set(runs)], given.out, given.calibrate)


if __name__ == "__main__":
    main()
