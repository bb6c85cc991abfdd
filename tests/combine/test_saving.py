"""A saved posterior comes back as it was, or a sentence says why not."""

import json
import pickle
from threading import Thread

import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
import solved
from anabranch import errors, programs
from anabranch.combine import Posterior, Solution
from anabranch.combine.saving import FORMAT, NUMBERS
from anabranch.conquer.estimate import Estimate
from anabranch.divide import data_fingerprint
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


def draws_file(folder):
    [file] = folder.glob("draws-*.npz")
    return file


@pytest.mark.parametrize("given", [(), (solved.choice, solved.Y), ("solved:choice", solved.Y)])
def test_everything_comes_back(posterior, folder, given):
    again = ab.load(folder, *given)
    assert again.run == posterior.run
    assert again.log_evidence == posterior.log_evidence
    assert repr(again) == repr(posterior)
    assert again.paths.equals(posterior.paths)
    assert again.probability("twice") == posterior.probability("twice")
    assert again.probability("model").errors == posterior.probability("model").errors
    assert again.expectation(lambda draw: draw["mean"]) == posterior.expectation(lambda draw: draw["mean"])
    assert again.quantile("mu", 0.3) == posterior.quantile("mu", 0.3)
    assert again.summary().equals(posterior.summary())
    np.testing.assert_array_equal(again.draws(30)["mean"], posterior.draws(30)["mean"])
    assert again.draws(30).to_dataframe().equals(posterior.draws(30).to_dataframe())
    assert again.odds(lambda draw: draw["model"] > 0).posterior_odds > 0
    assert again.plot() is not None
    if given:
        np.testing.assert_array_equal(again.replicate(30)["y"], posterior.replicate(30)["y"])
        assert again.draws(5).results[0]["label"] == "a word"


def test_without_the_program_what_runs_it_says_so(folder):
    again = ab.load(folder)
    for question in (
        lambda: again.replicate(5), lambda: again.log_likelihood(5), lambda: again.draws(2)[0].result,
        lambda: again.solution().path.evaluate(again.solution().points), lambda: again.stacking(),
    ):  # fmt: skip
        with pytest.raises(errors.NeedsProgram, match="with the program and its data"):
            question()
    assert np.isnan(again.odds(lambda draw: draw["model"] > 0).log_prior_odds)


def test_nothing_is_unpickled(folder, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    assert ab.load(folder).draws(5)["model"].shape == (5,)
    assert {file.suffix for file in folder.iterdir()} == {".json", ".npz"}


def other_choice(y):
    ab.sample("model", dist.Categorical(solved.PRIOR))
    ab.observe("y", dist.Normal(0.0, 1.0), y)


def test_another_program_or_other_data_are_refused(folder):
    with pytest.raises(errors.CannotLoad, match=r"other_choice is not the one of the posterior .* its text differs"):
        ab.load(folder, other_choice, solved.Y)
    with pytest.raises(errors.CannotLoad, match="the arguments of choice are not those"):
        ab.load(folder, solved.choice, solved.Y + 1)
    with pytest.raises(errors.CannotLoad, match="the arguments of choice are not those"):
        ab.load(folder, solved.choice)
    for name in ("solved:nothing", "no_such_module:choice", "solved"):
        with pytest.raises(errors.CannotLoad, match="there is no program"):
            ab.load(folder, name, solved.Y)


def test_the_fingerprint_of_data_sees_values_types_and_places():
    kinds = [((np.zeros(3),), {}), ((np.zeros(4),), {}), ((np.ones(3),), {}), ((np.zeros(3, int),), {}),
             ((0.0,), {}), (([0.0],), {}), (({"a": 1},), {}), (({"b": 1},), {}), ((), {"y": 1}), ((), {"x": 1}),
             ((None,), {}), (("text",), {})]  # fmt: skip
    assert len({data_fingerprint(*each) for each in kinds}) == len(kinds)
    assert data_fingerprint((np.zeros(3),), {}) == data_fingerprint((np.zeros(6)[::2],), {})


def test_a_seed_of_numpy_is_saved_as_any_other(tmp_path):
    ab.infer(programs.branching, 2.0, seed=np.int64(3)).save(tmp_path / "run")
    assert ab.load(tmp_path / "run").run.seed == 3


def test_paths_are_rebuilt_only_when_asked(folder):
    again = ab.load(folder, solved.choice, solved.Y)
    repr(again), again.paths, again.warnings
    assert not any("_rebuilt" in vars(solution.path) for solution in again.solutions)
    again.solution().path.evaluate(again.solution().points[:2], compile=False)
    assert "_rebuilt" in vars(again.solutions[0].path)
    assert "_rebuilt" not in vars(again.solutions[1].path)


def test_what_was_loaded_can_be_saved_over_itself(posterior, folder):
    for given in ((), (solved.choice, solved.Y)):
        ab.load(folder, *given).save(folder)
        again = ab.load(folder, solved.choice, solved.Y)
        assert again.probability("model") == posterior.probability("model")
        np.testing.assert_array_equal(again.draws(9)["mean"], posterior.draws(9)["mean"])
    assert [file.name for file in folder.parent.iterdir()] == ["run"]
    assert len(list(folder.iterdir())) == 2


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
    assert sorted(ab.load(tmp_path / "run").draws(2)["x"]) == [1.5, 2.5]
    again = ab.load(tmp_path / "run", program, 1.0)
    assert sorted(again.draws(2)["x"]) == [1.5, 2.5]
    expected = division.paths[0].evaluate(points).log_density
    np.testing.assert_array_equal(again.solutions[0].path.evaluate(points).log_density, expected)


def test_a_folder_with_something_else_is_left_alone(posterior, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match="holds no posterior"):
        posterior.save(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("failing", ["numpy.savez", "pathlib.Path.replace", "pathlib.Path.write_text"])
def test_a_failed_save_leaves_the_old_one_and_nothing_else(posterior, folder, monkeypatch, failing):
    def fail(*_, **__):
        raise OSError("disk full")

    files = {file.name for file in folder.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(failing, fail)
        with pytest.raises(OSError, match="disk full"):
            posterior.save(folder)
    assert ab.load(folder).log_evidence == posterior.log_evidence
    assert {file.name for file in folder.iterdir()} == files


def test_saving_again_leaves_other_files_alone(posterior, folder):
    (folder / "notes.txt").write_text("my own")
    (folder / "draws-of-mine.npz").write_bytes(b"my own")
    posterior.save(folder)
    assert (folder / "notes.txt").read_text() == "my own"
    assert (folder / "draws-of-mine.npz").exists()
    assert len(list(folder.iterdir())) == 4


def test_a_link_is_followed(posterior, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    (tmp_path / "dangling").symlink_to(tmp_path / "later")
    for name, folder in (("link", "there"), ("dangling", "later")):
        posterior.save(tmp_path / name)
        assert (tmp_path / name).is_symlink()
        assert ab.load(tmp_path / folder).log_evidence == posterior.log_evidence


def test_threads_that_save_to_one_folder_leave_one_posterior(posterior, tmp_path):
    threads = [Thread(target=posterior.save, args=(tmp_path / "run",)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ab.load(tmp_path / "run").log_evidence == posterior.log_evidence
    assert len(list((tmp_path / "run").iterdir())) == 2


@pytest.mark.parametrize(("version", "remedy"), [(FORMAT + 1, "Upgrade Anabranch"), (1, "Run the inference again")])
def test_another_format_is_refused(folder, version, remedy):
    numbers = json.loads((folder / NUMBERS).read_text())
    (folder / NUMBERS).write_text(json.dumps(numbers | {"format": version}))
    with pytest.raises(errors.CannotLoad, match=rf"has format {version}, .* reads format {FORMAT}. {remedy}"):
        ab.load(folder)


@pytest.mark.parametrize("find", [draws_file, lambda folder: folder / NUMBERS], ids=["draws", "numbers"])
def test_a_missing_file_is_named(folder, find):
    find(folder).unlink()
    with pytest.raises(errors.CannotLoad, match=r"(posterior.json|draws-\w+.npz) is missing"):
        ab.load(folder)


@pytest.mark.parametrize("find", [draws_file, lambda folder: folder / NUMBERS], ids=["draws", "numbers"])
@pytest.mark.parametrize("keep", [0, 0.5, 0.9])
def test_a_damaged_file_is_said(folder, find, keep):
    content = find(folder).read_bytes()
    find(folder).write_bytes(content[: int(keep * len(content))])
    with pytest.raises(errors.CannotLoad, match="is damaged"):
        ab.load(folder)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(errors.CannotLoad, match="holds no saved posterior"):
        ab.load(tmp_path / "nowhere")


def test_probabilities_of_a_variable_summed_out_are_those_of_draws_without_the_program(tmp_path):
    def program(y):
        z = ab.sample("z", dist.Bernoulli(0.3))
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        ab.observe("y", dist.Normal(x + 2.0 * z, 1.0), y)

    posterior = ab.infer(program, 1.0, budget=20_000)
    posterior.save(tmp_path / "run")
    exact, counted = posterior.probability("z"), ab.load(tmp_path / "run").probability("z")
    assert ab.load(tmp_path / "run", program, 1.0).probability("z") == exact
    assert abs(exact[1] - 0.3) < 4 * exact.errors[1] + 1e-9  # one is as far from the mean as the other
    assert abs(counted[1] - 0.3) < 4 * counted.errors[1] < 0.15
