"""A run that was ended goes on to the same answer, bit for bit; a checkpoint that is not its own is refused."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch import errors
from anabranch.checkpoint import checkpoint as checkpoints
from anabranch.checkpoint import folder as folders
from anabranch.checkpoint.journal import Journal
from anabranch.conquer.elimination import Eliminated
from anabranch.search.visit import Visitor
from bits import bits
from small_runs import SMALL, coins, counts

DATA = np.array([7.0, 9.0])
BUDGET = 8_000


def infer(folder=None, program=coins, data=DATA, **settings):
    defaults = {"budget": BUDGET, "tolerance": None, "engine": SMALL, "checkpoint": folder}
    return ab.infer(program, data, **{**defaults, **settings})


@pytest.fixture(scope="module")
def whole():
    """The answer of a run that never stopped."""
    return bits(infer())


@pytest.fixture(autouse=True)
def _after_every_round(monkeypatch):
    monkeypatch.setattr(checkpoints, "TIME_SHARE", np.inf)


class Ended(BaseException):
    """The process was killed."""


def ended_after(monkeypatch, visits, error=Ended):
    """Let the process end after so many visits."""
    made, visit = [], Visitor.__call__

    def counted(self, task):
        made.append(task)
        if len(made) > visits:
            raise error
        return visit(self, task)

    monkeypatch.setattr(Visitor, "__call__", counted)
    return made


def test_a_run_is_the_same_with_and_without_and_is_not_made_twice(whole, tmp_path, monkeypatch):
    assert bits(infer(tmp_path / "run")) == whole
    made = ended_after(monkeypatch, np.inf)
    assert bits(infer(tmp_path / "run")) == whole
    assert not made


def test_a_run_that_stops_at_the_error_of_an_expectation_is_the_same(tmp_path):
    """Its decisions depend on the draws of every visit, and not only on the numbers of its estimate."""
    settings = {"tolerance": ab.Tolerance(0.002, of=lambda draw: draw["biased"])}
    whole = bits(infer(**settings))
    assert bits(infer(tmp_path / "run", **settings)) == whole
    assert bits(infer(tmp_path / "run", **settings)) == whole


@pytest.mark.parametrize("visits", [3, 6])
def test_a_run_that_was_ended_goes_on_to_the_same_answer(whole, tmp_path, monkeypatch, visits):
    with monkeypatch.context() as patch:
        ended_after(patch, visits)
        with pytest.raises(Ended):
            infer(tmp_path / "run", workers=1)
    assert ab.read_progress(tmp_path / "run").evaluations < BUDGET
    made = ended_after(monkeypatch, np.inf)
    assert bits(infer(tmp_path / "run")) == whole
    assert {task.visits for task in made} != {0}  # it did go on


def test_sums_and_prior_draws_are_as_they_were(tmp_path, monkeypatch):
    y = np.array([1.2, 0.1])
    whole = bits(infer(None, counts, y))
    with monkeypatch.context() as patch:
        ended_after(patch, 2)
        with pytest.raises(Ended):
            infer(tmp_path / "run", counts, y, workers=1)
    made = ended_after(monkeypatch, np.inf)
    assert bits(infer(tmp_path / "run", counts, y)) == whole
    assert any(isinstance(task.target, Eliminated) for task in made if task.visits)


def test_an_interrupted_run_has_a_posterior_and_goes_on_to_the_same_answer(whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        ended_after(patch, 4, KeyboardInterrupt)
        part = infer(tmp_path / "run", workers=1)
    assert "interrupted" in part.run.stopped
    assert np.isfinite(part.log_evidence)
    assert bits(infer(tmp_path / "run")) == whole


def test_an_interrupt_before_the_run_is_where_it_was_gives_what_was_saved(tmp_path, monkeypatch):
    saved = infer(tmp_path / "run")
    calls, recall = [], Journal.recall

    def interrupted(self, task, is_timed):
        calls.append(task)
        if len(calls) > 4:
            raise KeyboardInterrupt
        return recall(self, task, is_timed)

    monkeypatch.setattr(Journal, "recall", interrupted)
    part = infer(tmp_path / "run")
    assert "interrupted" in part.run.stopped
    assert abs(part.log_evidence - saved.log_evidence) < 4 * part.log_evidence_sd < 2
    assert all(len(solution.points) for solution in part.solutions if solution.visits)


KILLED = """
import os, signal, sys
sys.path[:0] = [{tests!r}, {here!r}]
import numpy as np
from anabranch.checkpoint import checkpoint as checkpoints
import test_checkpoint as test

checkpoints.TIME_SHARE = np.inf
save = checkpoints.Checkpoint.save
for share in map(float, sys.argv[2:]):
    if not (child := os.fork()):  # nothing was computed by jax so far

        def killed(self, status, limits):
            save(self, status, limits)
            if status.evaluations >= share * test.BUDGET:
                os.kill(os.getpid(), signal.SIGKILL)

        checkpoints.Checkpoint.save = killed
        test.infer(sys.argv[1])
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
"""


@pytest.mark.parametrize(
    "shares", [("0.5", "0.9"), pytest.param(("0.2", "0.5", "0.75", "0.9"), marks=pytest.mark.slow)], ids=["two", "four"]
)
def test_kill_minus_nine_at_any_time(whole, tmp_path, processes_compile_quickly, shares):
    here = Path(__file__).parent
    script = KILLED.format(tests=str(here.parent), here=str(here))
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "run"), *shares]
    compiled = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    subprocess.run(command, check=True, timeout=120, env={**os.environ, **compiled})
    assert ab.read_progress(tmp_path / "run").evaluations >= 0.9 * BUDGET
    assert bits(infer(tmp_path / "run")) == whole


def test_a_run_can_go_on_beyond_its_end_in_another_process(tmp_path):
    more = {"budget": 3_000, "tolerance": None}
    whole = bits(infer().more(**more))
    assert bits(infer(tmp_path / "run").more(**more)) == whole
    assert bits(infer(tmp_path / "run")) != whole
    assert bits(infer(tmp_path / "run").more(**more)) == whole


def test_the_time_that_was_spent_counts(tmp_path):
    first = infer(tmp_path / "run", budget=10**8, seconds=1.5)
    assert "seconds are over" in first.run.stopped
    again = infer(tmp_path / "run", budget=10**8, seconds=1.5)
    assert again.run.evaluations <= first.run.evaluations  # without what the end of the time has cut short
    assert again.run.seconds > 1.5
    assert abs(again.log_evidence - first.log_evidence) < 6 * np.hypot(first.log_evidence_sd, again.log_evidence_sd)
    longer = infer(tmp_path / "run", budget=10**8, seconds=2.5)
    assert longer.run.evaluations > again.run.evaluations


# Refused --------------------------------------------------------------------------------------------------------------


def other_coins(heads):
    ab.observe("heads", dist.Binomial(10, ab.sample("p", dist.Beta(1.0, 2.0))), heads)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"program": other_coins}, "the program"),
        ({"data": DATA + 1}, "the data"),
        ({"seed": 1}, "seed"),
        ({"budget": 9_999}, "budget"),
        ({"engine": ab.DCC(executions=300)}, "settings of the engine"),
        ({"max_sites": 99}, "max_sites"),
    ],
    ids=lambda each: str(each)[:20],
)
def test_another_run_is_refused(change, word, tmp_path):
    infer(tmp_path / "run", budget=1_000)
    with pytest.raises(errors.CannotLoad, match=f"another run: other .*{word}"):
        infer(tmp_path / "run", **{"budget": 1_000, **change})


SCALE = 1.0


def helper(x):
    return SCALE * x


def with_a_helper(y):
    ab.observe("y", dist.Normal(helper(ab.sample("x", dist.Normal(0.0, 1.0))), 1.0), y)


def test_another_value_in_a_function_that_the_program_calls_is_refused(tmp_path, monkeypatch):
    infer(tmp_path / "run", with_a_helper, 1.0, budget=1_000)
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    with pytest.raises(errors.CannotLoad, match="other the program"):
        infer(tmp_path / "run", with_a_helper, 1.0, budget=1_000)


def test_engines_without_checkpoints_say_so(tmp_path):
    with pytest.raises(errors.BadSetting, match="SMC saves no checkpoints"):
        infer(tmp_path / "run", engine=ab.engines.SMC())


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(errors.CannotLoad, match="holds no checkpoint"):
        infer(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_two_runs_at_once_in_one_folder_are_refused(tmp_path):
    with folders.Folder(tmp_path / "run").locked(), pytest.raises(errors.CannotLoad, match="another run is writing"):
        infer(tmp_path / "run", budget=1_000)


# Faults ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writes", [0, 3])
def test_a_full_disk_is_a_warning(whole, tmp_path, monkeypatch, writes):
    done, write = [], folders._write

    def full(file, content):
        done.append(file)
        if len(done) > writes:
            file.write_bytes(content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(file, content)

    with monkeypatch.context() as patch:
        patch.setattr(folders, "_write", full)
        posterior = infer(tmp_path / "run")
    assert bits(posterior) == whole
    assert any("could not be written (No space left on device)" in each for each in posterior.warnings)
    assert not list((tmp_path / "run").glob(".index*"))
    again = infer(tmp_path / "run")
    assert bits(again) == whole
    assert not any("could not be written" in each for each in again.warnings)


def test_memory_that_runs_short_leaves_a_posterior(whole, tmp_path, monkeypatch):
    from anabranch.search.discovery import Discovery

    calls, discover = [], Discovery.discover

    def exhausted(self, state, visits):
        calls.append(visits)
        if len(calls) > 2:
            raise MemoryError
        discover(self, state, visits)

    with monkeypatch.context() as patch:
        patch.setattr(Discovery, "discover", exhausted)
        part = infer(tmp_path / "run")
    assert "Memory ran short" in part.run.stopped
    assert np.isfinite(part.log_evidence)
    assert bits(infer(tmp_path / "run")) == whole


class Box:
    """A state that is no plain data."""

    def __init__(self, state):
        self.state = state


class Boxed:
    """A strategy with such a state."""

    inner = ab.DCC().strategy

    def start(self, target, rng):
        return Box(self.inner.start(target, rng))

    def advance(self, target, state, rng, evaluations):
        return Box(self.inner.advance(target, state.state, rng, evaluations))

    def estimate(self, target, state):
        return self.inner.estimate(target, state.state)

    def __repr__(self):
        return "Boxed()"


def test_a_strategy_whose_state_cannot_be_saved_works_again(tmp_path, monkeypatch):
    engine = replace(SMALL, strategy=Boxed())
    first = bits(infer(tmp_path / "run", engine=engine))
    made = ended_after(monkeypatch, np.inf)
    assert bits(infer(tmp_path / "run", engine=engine)) == first
    assert made


def test_many_saves_leave_few_files(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "_MAX_PARTS", 2)
    first = bits(infer(tmp_path / "run"))
    assert len(list((tmp_path / "run").iterdir())) <= 3 + 2 * 3
    assert bits(infer(tmp_path / "run")) == first


def test_what_is_saved_has_no_code(tmp_path):
    infer(tmp_path / "run", budget=2_000)
    index = json.loads((tmp_path / "run" / "index.json").read_text())
    for part in index["parts"]:
        with np.load(tmp_path / "run" / part["file"], allow_pickle=False) as kept:
            assert not any(kept[name].dtype.hasobject for name in kept.files)
            json.loads(kept["tree"].tobytes())


def test_progress_is_read_while_a_run_goes_on(tmp_path, monkeypatch):
    seen, save = [], checkpoints.Checkpoint._save

    def watched(self, *status):
        save(self, *status)
        seen.append(ab.read_progress(tmp_path / "run"))

    monkeypatch.setattr(checkpoints.Checkpoint, "_save", watched)
    posterior = infer(tmp_path / "run")
    spent = [each.evaluations for each in seen]
    assert spent == sorted(spent)
    assert len(set(spent)) > 3
    assert (seen[-1].paths, seen[-1].evaluations) == (3, posterior.run.evaluations)
    assert seen[-1].program == "coins"
    with pytest.raises(errors.CannotLoad, match="holds no checkpoint"):
        ab.read_progress(tmp_path)


def test_saving_takes_a_small_share_of_the_time(tmp_path, monkeypatch):
    """By a clock of its own: a save takes three seconds, a round one."""
    monkeypatch.setattr(checkpoints, "TIME_SHARE", 0.03)
    now, write = [0.0], folders.Folder.write
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: now[0])
    saves = []

    def slow(self, *args):
        now[0] += 3.0
        saves.append(now[0])
        return write(self, *args)

    monkeypatch.setattr(folders.Folder, "write", slow)
    save = checkpoints.Checkpoint.save

    def round_of_a_second(self, *args):
        for _ in range(50):
            now[0] += 1.0
            save(self, *args)

    monkeypatch.setattr(checkpoints.Checkpoint, "save", round_of_a_second)
    infer(tmp_path / "run")
    assert len(saves) > 3
    assert 3.0 * (len(saves) - 2) < 0.035 * now[0]  # but the first one and the one at the end
