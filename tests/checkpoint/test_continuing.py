"""A posterior that was saved goes on in another process, to the answer of the run that it was, without its visits."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

import anabranch as ab
import wide
from anabranch import errors
from anabranch.checkpoint import folder as folders
from anabranch.conquer import Auto
from anabranch.search.visit import Visitor
from bits import bits
from small_runs import SMALL, coins, counts

DATA = np.array([7.0, 9.0])
MORE = {"budget": 3_000, "tolerance": None}


def run(program=coins, data=DATA, **settings):
    return ab.infer(program, data, **{"budget": 6_000, "tolerance": None, "engine": SMALL, **settings})


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def counted(monkeypatch):
    """The visits that are made from here on."""
    made, visit = [], Visitor.__call__

    def noted(self, task):
        made.append((task.number, task.visits))
        return visit(self, task)

    monkeypatch.setattr(Visitor, "__call__", noted)
    return made


@pytest.mark.parametrize(("program", "data"), [(coins, DATA), (counts, np.array([1.2, 0.1]))])
def test_a_loaded_run_goes_on_to_the_same_answer_without_a_visit_made_twice(folder, monkeypatch, program, data):
    first = run(program, data)
    first.save(folder)
    made = counted(monkeypatch)
    whole, visits = first.more(**MORE), sorted(made)
    made.clear()
    loaded = ab.load(folder, program, data)
    assert bits(loaded.more(**MORE)) == bits(whole)
    assert sorted(made) == visits
    assert bits(loaded.more(**MORE)) == bits(whole)  # from the folder a run goes on as often as one likes


def test_and_again_from_what_went_on(folder):
    first = run()
    first.save(folder)
    second = ab.load(folder, coins, DATA).more(**MORE)
    second.save(folder)
    assert len(list(folder.iterdir())) == 3
    third = first.more(**MORE).more(**MORE)
    assert bits(ab.load(folder, coins, DATA).more(**MORE)) == bits(third)
    assert second.run.seconds > first.run.seconds


def test_what_was_loaded_is_saved_with_its_visits(folder, tmp_path):
    first = run()
    first.save(folder)
    ab.load(folder).save(tmp_path / "copy")  # without the program
    ab.load(tmp_path / "copy", coins, DATA).save(tmp_path / "copy")
    assert bits(ab.load(tmp_path / "copy", coins, DATA).more(**MORE)) == bits(first.more(**MORE))


OTHER_PROCESS = """
import sys
sys.path[:0] = [{tests!r}]
import anabranch as ab
from small_runs import coins

posterior = ab.load(sys.argv[1], coins, __import__("numpy").array([7.0, 9.0])).more(budget=3_000, tolerance=None)
print(repr(posterior.log_evidence), repr(posterior.expectation("p")))
"""


def test_in_another_process(folder, tmp_path, processes_compile_quickly):
    first = run()
    first.save(folder)
    command = [sys.executable, "-W", "ignore", "-c", OTHER_PROCESS.format(tests=str(Path(__file__).parent.parent))]
    done = subprocess.run([*command, str(folder)], check=True, timeout=120, capture_output=True, text=True)
    whole = first.more(**MORE)
    assert done.stdout.strip() == f"{whole.log_evidence!r} {whole.expectation('p')!r}"


def test_a_run_with_a_checkpoint_is_saved_whole(folder, tmp_path):
    first = run(checkpoint=tmp_path / "checkpoint")
    first.save(folder)
    assert bits(ab.load(folder, coins, DATA).more(**MORE)) == bits(run().more(**MORE))


def test_a_run_whose_time_was_over_goes_on_from_the_visits_that_it_completed(folder, monkeypatch):
    first = run(budget=10**8, seconds=1.5)
    first.save(folder)
    made = counted(monkeypatch)
    second = ab.load(folder, coins, DATA).more(**MORE)
    assert second.run.evaluations >= first.run.evaluations
    assert abs(second.log_evidence - first.log_evidence) < 6 * np.hypot(first.log_evidence_sd, second.log_evidence_sd)
    assert len(made) < 0.5 * len(second.history)
    assert second.run.seconds > first.run.seconds > 1.4


def test_an_interrupt_on_the_way_leaves_the_loaded_posterior_as_it_was(folder, monkeypatch):
    first = run()
    first.save(folder)
    loaded = ab.load(folder, coins, DATA)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ab.Division, "explore", interrupt)
        with pytest.raises(KeyboardInterrupt):
            loaded.more(**MORE)
    assert bits(loaded.more(**MORE)) == bits(first.more(**MORE))


def test_of_many_paths(folder, monkeypatch):
    first = ab.infer(wide.selection, wide.Y, budget=3_000, tolerance=None)
    first.save(folder)
    made = counted(monkeypatch)
    again = ab.load(folder, wide.selection, wide.Y).more(budget=100, tolerance=None)
    loaded = len(made)
    assert bits(again) == bits(first.more(budget=100, tolerance=None))
    assert len(made) == 2 * loaded < len(first.paths)


# What is in the folder ------------------------------------------------------------------------------------------------


def test_the_visits_take_no_more_room_than_the_draws_and_no_pickle(folder):
    first = run()
    sizes = []
    for _ in range(3):
        first.save(folder)
        [visits], [draws] = folder.glob("visits-*.npz"), folder.glob("draws-*.npz")
        assert visits.stat().st_size < 3 * draws.stat().st_size
        with np.load(visits, allow_pickle=False) as kept:
            assert not any(kept[name].dtype.hasobject for name in kept.files)
        sizes.append(sum(file.stat().st_size for file in folder.iterdir()) / len(first.draws(1)))
        first = first.more(**MORE)
    assert sizes[2] < 3 * sizes[0]  # the draws of the last visit to each path, and not of all


def test_a_failed_save_leaves_the_old_visits(folder, monkeypatch):
    first = run()
    first.save(folder)
    names, whole = sorted(os.listdir(folder)), first.more(**MORE)

    def full(*_):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="no space left"):
            whole.save(folder)
    assert sorted(os.listdir(folder)) == names
    assert bits(ab.load(folder, coins, DATA).more(**MORE)) == bits(whole)


# Refused --------------------------------------------------------------------------------------------------------------

SHIFT = 0.0


def shifted(heads):
    return coins(heads + SHIFT)


def test_another_program_other_data_or_another_version_are_refused(folder, monkeypatch):
    run(shifted).save(folder)
    with pytest.raises(errors.CannotLoad, match="text differs"):
        ab.load(folder, coins, DATA)
    with pytest.raises(errors.CannotLoad, match="arguments"):
        ab.load(folder, shifted, DATA + 1)
    loaded = ab.load(folder, shifted, DATA)
    monkeypatch.setitem(globals(), "SHIFT", -1.0)  # a value that the program reads, beyond its own text
    with pytest.raises(errors.CannotContinue, match=r"other the program than when it was saved\. Run infer again"):
        loaded.more(**MORE)


@dataclass(frozen=True)
class Mine:
    """A strategy of the user's own."""

    inner: Auto = field(default_factory=Auto)

    def start(self, target, rng):
        return self.inner.start(target, rng)

    def advance(self, target, state, rng, evaluations):
        return self.inner.advance(target, state, rng, evaluations)

    def estimate(self, target, state):
        return self.inner.estimate(target, state)


@pytest.mark.parametrize(
    "settings",
    [
        {"engine": replace(SMALL, strategy=Mine())},
        {"engine": replace(SMALL, strategy=lambda path: None)},
        {"tolerance": ab.Tolerance(0.1, of=lambda draw: draw["biased"])},
    ],
    ids=["class", "function", "expectation"],
)
def test_code_of_the_user_is_not_saved(folder, settings):
    run(**settings).save(folder)
    assert len(list(folder.iterdir())) == 2
    with pytest.raises(errors.CannotContinue, match="functions or classes of your own"):
        ab.load(folder, coins, DATA).more(**MORE)


def test_settings_of_the_library_are_saved_with_their_arrays(folder):
    strategies = {"biased = 0": ab.DCC().strategy}
    settings = replace(SMALL, strategy=strategies, start=[{"biased": np.array(1)}])
    first = run(engine=settings)
    first.save(folder)
    assert bits(ab.load(folder, coins, DATA).more(**MORE)) == bits(first.more(**MORE))


def test_a_run_that_had_gone_on_or_was_saved_before_visits_were(folder):
    first = run()
    first.more(**MORE)
    first.save(folder)
    with pytest.raises(errors.CannotContinue, match=r"gone on already\. Call more on the posterior that more returned"):
        ab.load(folder, coins, DATA).more(**MORE)
    numbers = json.loads((folder / "posterior.json").read_text())
    del numbers["visits"], numbers["cannot_continue"]
    (folder / "posterior.json").write_text(json.dumps(numbers))
    with pytest.raises(errors.CannotContinue, match="by an earlier version"):
        ab.load(folder, coins, DATA).more(**MORE)


def test_a_checkpoint_that_is_no_longer_there(folder, tmp_path):
    first = run(checkpoint=tmp_path / "checkpoint")
    for file in (tmp_path / "checkpoint").glob("part-*"):
        file.unlink()
    first.save(folder)
    with pytest.raises(errors.CannotContinue, match="checkpoint could not be read"):
        ab.load(folder, coins, DATA).more(**MORE)


def test_visits_that_are_damaged(folder):
    run().save(folder)
    [visits] = folder.glob("visits-*.npz")
    content = visits.read_bytes()
    visits.write_bytes(content[: len(content) // 2])
    with pytest.raises(errors.CannotContinue, match="damaged"):
        ab.load(folder, coins, DATA).more(**MORE)
    assert folders.unpacked(content)


def test_the_folder_of_a_checkpoint_is_no_posterior(folder):
    run(checkpoint=folder)
    with pytest.raises(errors.CannotLoad, match=r"checkpoint of a run.*Call infer as before, with checkpoint="):
        ab.load(folder, coins, DATA)
