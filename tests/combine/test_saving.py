"""A saved posterior comes back as it was, or a sentence says why not."""

import json

import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
import solved
from anabranch import errors, programs
from anabranch.combine import Posterior, Solution, load
from anabranch.combine.saving import DRAWS, FORMAT, NUMBERS, PROGRAM
from anabranch.conquer.estimate import Estimate
from helpers import interpreted


@pytest.fixture(scope="module")
def posterior():
    whole = solved.posterior(solved.divided())
    unsolved = Solution(whole.solutions[2].path, None, 3)
    return Posterior(whole.program, [*whole.solutions[:2], unsolved], solved.run(notes=("A note.",)))


@pytest.fixture
def folder(posterior, tmp_path):
    posterior.save(tmp_path / "run")
    return tmp_path / "run"


def test_everything_comes_back(posterior, folder):
    again = load(folder)
    assert again.run == posterior.run
    assert again.log_evidence == posterior.log_evidence
    assert repr(again) == repr(posterior)
    assert again.paths.equals(posterior.paths)
    assert again.probability("twice") == posterior.probability("twice")
    assert again.expectation(lambda draw: draw["mean"]) == posterior.expectation(lambda draw: draw["mean"])
    np.testing.assert_array_equal(again.draws(30)["mean"], posterior.draws(30)["mean"])
    np.testing.assert_array_equal(again.replicate(30)["y"], posterior.replicate(30)["y"])


def test_a_seed_of_numpy_is_saved_as_any_other(tmp_path):
    ab.infer(programs.branching, 2.0, seed=np.int64(3)).save(tmp_path / "run")
    assert load(tmp_path / "run").run.seed == 3


def test_paths_are_rebuilt_only_when_asked(folder):
    again = load(folder)
    repr(again), again.paths, again.warnings
    assert not any("_rebuilt" in vars(solution.path) for solution in again.solutions)
    again.solution().path.evaluate(again.solution().points[:2], compile=False)
    assert "_rebuilt" in vars(again.solutions[0].path)
    assert "_rebuilt" not in vars(again.solutions[1].path)


def test_what_was_loaded_can_be_saved_over_itself(posterior, folder):
    load(folder).save(folder)
    assert load(folder).probability("model") == posterior.probability("model")
    assert [file.name for file in folder.parent.iterdir()] == ["run"]


def test_closures_and_interpreted_paths_come_back(tmp_path):
    centre = 2.0

    def program(y):
        x = ab.sample("x", dist.Normal(centre, 1.0))
        ab.observe("y", dist.Normal(float(x), 1.0), y)

    division = interpreted(program, 1.0)
    division.explore(3, seed=0)
    points = np.array([[1.5], [2.5]])
    estimate = Estimate.from_draws(points, np.zeros(2), -2.0, 0.1, 2, "by hand")
    Posterior(division.program, [Solution(division.paths[0], estimate)], solved.run()).save(tmp_path / "run")
    again = load(tmp_path / "run")
    assert sorted(again.draws(2)["x"]) == [1.5, 2.5]
    expected = division.paths[0].evaluate(points).log_density
    np.testing.assert_array_equal(again.solutions[0].path.evaluate(points).log_density, expected)


def test_a_folder_with_something_else_is_left_alone(posterior, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match="holds no posterior"):
        posterior.save(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_failed_save_leaves_the_old_one(posterior, folder, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("anabranch.combine.saving.cloudpickle.dumps", fail)
    with pytest.raises(OSError, match="disk full"):
        posterior.save(folder)
    monkeypatch.undo()
    assert load(folder).log_evidence == posterior.log_evidence
    assert [file.name for file in folder.parent.iterdir()] == ["run"]


@pytest.mark.parametrize(("version", "remedy"), [(FORMAT + 1, "Upgrade Anabranch"), (1, "Run the inference again")])
def test_another_format_is_refused(folder, version, remedy):
    numbers = json.loads((folder / NUMBERS).read_text())
    (folder / NUMBERS).write_text(json.dumps(numbers | {"format": version}))
    with pytest.raises(errors.CannotLoad, match=rf"has format {version}, .* reads format {FORMAT}. {remedy}"):
        load(folder)


@pytest.mark.parametrize("name", [NUMBERS, DRAWS, PROGRAM])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(errors.CannotLoad, match=f"{name} is missing"):
        load(folder)


@pytest.mark.parametrize("name", [NUMBERS, DRAWS, PROGRAM])
@pytest.mark.parametrize("keep", [0, 0.5, 0.9])
def test_a_damaged_file_is_said(folder, name, keep):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: int(keep * len(content))])
    with pytest.raises(errors.CannotLoad, match="is damaged"):
        load(folder)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(errors.CannotLoad, match="holds no saved posterior"):
        load(tmp_path / "nowhere")
