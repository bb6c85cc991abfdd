"""The command as people and scripts call it: what it prints where, what it writes, and how it ends."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import programs
from anabranch.command import doctor, main
from anabranch.command import run as run_command
from anabranch.progress import Progress
from anabranch.report.page import pictures

MODEL = """
import anabranch as ab
import numpyro.distributions as dist
from scale import SCALE


def mean(y, spread=1.0):
    ab.observe("y", dist.Normal(ab.sample("mu", dist.Normal(0.0, spread)), SCALE), y)


def either(y):
    p = 0.5 if ab.sample("fair", dist.Bernoulli(0.5)) else ab.sample("p", dist.Beta(1.0, 1.0))
    ab.observe("y", dist.Bernoulli(p), y)


def broken(y):
    return 1 / 0


number = 3
"""
BRANCHING = "anabranch.programs:branching"
EXACT = -3.1495
"""The log evidence of the branching program."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a program and its data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("model", "scale"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "scale.py").write_text("SCALE = 2.0\n")
    (tmp_path / "y.csv").write_text("y,other\n1.0,4\n2.5,5\n")
    (tmp_path / "flips.json").write_text("[1, 1, 0, 1]")
    return tmp_path


def log_evidence(spread: float) -> float:
    """Of the program `mean` with its data: two normal numbers with a shared mean."""
    covariance = 4.0 * np.eye(2) + spread**2
    y = np.array([1.0, 2.5])
    return float(-0.5 * (y @ np.linalg.solve(covariance, y) + np.linalg.slogdet(2 * np.pi * covariance)[1]))


def failing(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What wrong usage says."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


# run ------------------------------------------------------------------------------------------------------------------


def test_a_run_prints_the_posterior_and_leaves_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "model.py:mean", "--data", "y.csv", "--set", "spread=3", "--out", "run"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("Posterior of mean: log evidence")
    assert said.err.splitlines() == ["not used: other of y.csv", f"The report is {Path('run') / 'report.html'}."]
    assert ab.load("run").log_evidence == pytest.approx(log_evidence(3.0), abs=1e-6)
    assert "<h1>Posterior of mean</h1>" in (folder / "run/report.html").read_text()
    summary = json.loads((folder / "run/summary.json").read_text())
    assert summary["source"] == {"program": f"{folder}/model.py:mean", "data": f"{folder}/y.csv", "set": {"spread": 3}}
    assert main(["run", "model.py:mean", "--data", "y.csv", "--out", "run", "--quiet"]) == 0  # again, in its place
    assert capsys.readouterr().out == ""
    assert ab.load("run").log_evidence == pytest.approx(log_evidence(1.0), abs=1e-6)


def test_json_alone_is_on_standard_output(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["run", "model.py:either", "--data", "flips.json", "--json", "--seed", "3", "--budget", "20,000"])
    said = capsys.readouterr()
    summary = json.loads(said.out)
    assert status == (3 if summary["warnings"] else 0)
    exact = math.log(0.5 / 16 + 0.5 * math.gamma(4) * math.gamma(2) / math.gamma(6))
    assert abs(summary["log_evidence"] - exact) <= max(4 * summary["log_evidence_sd"], 1e-9)
    assert summary["log_evidence_sd"] < 0.07
    assert [path["path"] for path in summary["paths"]] == ["fair = 1", "fair = 0"]
    assert summary["seed"] == 3
    assert {row["name"] for row in summary["variables"]} == {"fair", "p"}
    assert {row["name"]: row["value"] for row in summary["decisions"]}.keys() == {"fair"}


def test_another_engine_has_no_evidence_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", BRANCHING, "--engine", "LightweightMH", "--budget", "2000", "--json"]) in (0, 3)
    assert json.loads(capsys.readouterr().out)["log_evidence"] is None


def test_warnings_have_a_status_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", BRANCHING, "--budget", "300"]) == 3
    assert "Warnings:" in capsys.readouterr().out


class Interrupting(Progress):
    """A display during which the user presses Ctrl-C."""

    def update(self, status: Any) -> None:
        raise KeyboardInterrupt


def test_an_interrupt_writes_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pictures, "figures", lambda *_: "")
    monkeypatch.setattr("anabranch.inference.make_progress", lambda *_: Interrupting())
    assert main(["run", BRANCHING, "--budget", "20000", "--tolerance", "1e-6", "--out", str(tmp_path / "run")]) == 130
    assert "The run was interrupted" in capsys.readouterr().out
    kept = ab.load(tmp_path / "run")
    assert abs(kept.log_evidence - EXACT) < 4 * kept.log_evidence_sd
    assert (tmp_path / "run/report.html").exists()


def test_an_interrupt_before_there_is_anything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_command, "infer", interrupted)
    assert main(["run", BRANCHING]) == 130
    assert "before there was anything to keep" in capsys.readouterr().err


def test_an_error_of_the_program_is_told_from_its_own_line_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "model.py:broken", "--data", "y.csv"]) == 1
    said = capsys.readouterr().err
    assert "ZeroDivisionError" in said
    assert f'File "{folder}/model.py"' in said
    assert "anabranch/divide" not in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model.py"], "which function of model.py is the program? Its functions: mean, either, broken."),
        (["model.py:number"], "model.py has no function 'number'."),
        (["none.py:mean"], "there is no file none.py"),
        (["no_such_module:mean"], "there is no module no_such_module"),
        (["model.py:mean"], "mean(y, spread) needs y, and the command has nothing: give the data by --data or --set"),
        (["model.py:mean", "--data", "none.csv"], "there is no file none.csv"),
        (["model.py:mean", "--data", "model.py"], "give .csv, .tsv, .json"),
        (["model.py:mean", "--set", "y=1", "--set", "size=2"], "takes no argument size"),
        (["model.py:mean", "--set", "y"], "must be NAME=VALUE with a value in JSON"),
        (["model.py:mean", "--set", "y=1", "--engine", "NUTS"], "there is no engine NUTS"),
        (["model.py:mean", "--set", "y=1", "--engine", "SVI"], "ab.infer takes it with its settings from Python"),
        (["model.py:mean", "--budget", "0"], "must be a whole number, at least 1; got '0'"),
        (["model.py:mean", "--seed", "-1"], "must be a whole number, at least 0; got '-1'"),
        (["model.py:mean", "--seconds", "no"], "must be a positive number; got 'no'"),
        (["model.py:mean", "--set", "y=1", "--out", "."], "exists and holds no posterior"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_wrong_usage_names_the_remedy(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in failing(["run", *arguments], capsys)


# The other commands ---------------------------------------------------------------------------------------------------


def test_paths_draws_the_tree(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paths", "model.py:either", "--data", "flips.json"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("either: 2 paths, 100 % of the prior mass found")
    assert "└─ fair = " in said
    assert main(["paths", "model.py:either", "--data", "flips.json", "--json", "--executions", "50"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {path["path"]: path["prior_probability"] for path in found["paths"]} == {"fair = 0": 0.5, "fair = 1": 0.5}
    assert found["prior_mass_found"] == pytest.approx(1.0)


def test_runs_are_compared_and_shown_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pictures, "_all", lambda plots, _: [pictures.Picture("Data", "Dots.", plots.predictive)])
    for name, spread in (("narrow", 1), ("wide", 10)):
        arguments = ["model.py:mean", "--data", "y.csv", "--set", f"spread={spread}", "--out", name, "--quiet"]
        assert main(["run", *arguments]) == 0
    capsys.readouterr()
    assert main(["compare", "narrow", "wide", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["model"] for row in rows["models"]] == ["narrow", "wide"]
    factor = log_evidence(10.0) - log_evidence(1.0)
    assert rows["models"][1]["log_bayes_factor"] == pytest.approx(factor, abs=1e-6)
    assert rows["models"][0]["elpd"] is None
    assert "was not loaded" in rows["notes"][0]
    assert main(["compare", "narrow", "wide", "--with-program"]) == 0
    assert "elpd" in capsys.readouterr().out
    assert "give two runs or more" in failing(["compare", "narrow"], capsys)
    assert "given twice" in failing(["compare", "narrow", "narrow"], capsys)
    (folder / "narrow/report.html").unlink()
    assert main(["report", "narrow"]) == 0
    assert capsys.readouterr().out.strip() == str(Path("narrow/report.html"))
    assert "this answer runs the program" in (folder / "narrow/report.html").read_text()
    assert main(["report", "wide", "--out", "other.html", "--with-program"]) == 0
    assert "this answer runs the program" not in (folder / "other.html").read_text()
    capsys.readouterr()
    (folder / "y.csv").write_text("y\n1.0\n2.6\n")
    assert "the arguments of mean are not those" in failing(["report", "wide", "--with-program"], capsys)


def test_a_folder_without_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "holds no saved posterior" in failing(["report", str(tmp_path)], capsys)
    ab.infer(programs.branching, 2.0, budget=2000).save(tmp_path / "run")
    said = failing(["report", str(tmp_path / "run"), "--with-program"], capsys)
    assert "it was not made by `anabranch run`" in said


def test_doctor_knows_a_right_answer_from_a_wrong_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = (np.arange(20_000) + 0.5) / 20_000
    prior = 12 * grid * (1 - grid) ** 2  # Beta(2, 3)
    by_quadrature = 0.5 * math.comb(10, 7) * (0.5**10 + np.mean(prior * grid**7 * (1 - grid) ** 3))
    assert abs(doctor.EXACT - math.log(by_quadrature)) < 1e-7
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "passed: log evidence -2.3" in said
    assert re.search(rf"^anabranch +{ab.__version__}$", said, re.MULTILINE)
    monkeypatch.setattr(doctor, "EXACT", -2.0)
    assert main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["self_check"]["passed"] is False
    monkeypatch.setattr(doctor, "infer", lambda *_, **__: 1 / 0)
    assert main(["doctor"]) == 1
    assert "FAILED: log evidence ZeroDivisionError" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["run", "paths", "report", "compare", "doctor", "reproduce"])
def test_help_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert f"examples:\n  anabranch {name}" in said
    assert max(map(len, said.splitlines())) <= 80


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"anabranch {ab.__version__}\n"


def test_the_process_gives_the_status() -> None:
    done = subprocess.run([sys.executable, "-m", "anabranch", "run", "x.py:f"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "anabranch run: there is no file x.py\n")


# Checkpoints ----------------------------------------------------------------------------------------------------------


def test_a_run_saves_its_checkpoints_and_goes_on_from_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", BRANCHING, "--set", "y=2.0", "--budget", "20000", "--json", "--quiet"]
    arguments += ["--checkpoint", str(tmp_path / "so-far")]
    outputs = []
    for _ in range(2):  # the second one takes all from the checkpoint
        main(arguments)
        outputs.append(json.loads(capsys.readouterr().out))
    assert outputs[0]["log_evidence"] == outputs[1]["log_evidence"]
    assert main(["watch", str(tmp_path / "so-far")]) == 0
    assert "paths visited, log evidence" in capsys.readouterr().out
    assert main(["watch", str(tmp_path / "so-far"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["evaluations"] > 0


def test_a_folder_without_a_checkpoint_cannot_be_watched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(tmp_path)]) == 1
    assert "holds no checkpoint" in capsys.readouterr().err
