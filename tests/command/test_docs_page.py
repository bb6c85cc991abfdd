"""The commands of docs/command.md run, and its tables are true."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

import anabranch as ab
from anabranch.command import main, status
from anabranch.report.page import pictures

PAGE = (Path(__file__).parent.parent.parent / "docs" / "command.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "model", raising=False)
    monkeypatch.setattr(pictures, "figures", lambda *_: "")
    Path("model.py").write_text(blocks("python")[0])
    Path("points.csv").write_text(blocks("text")[0])
    commands = [shlex.split(line) for block in blocks("console") for line in block.splitlines()]
    for command in commands:
        assert command[0] == "anabranch"
        quicker = ["--budget", "30000"] if command[1] == "run" else []
        assert main([*command[1:], *quicker]) in (0, 3)
    assert {"straight", "curved"} <= {path.name for path in tmp_path.iterdir()}
    straight, curved = ab.load("straight"), ab.load("curved")
    assert straight.log_evidence > curved.log_evidence  # the points are nearly on a line
    assert "stacking" in capsys.readouterr().out


def test_the_exit_statuses_are_those_of_the_command() -> None:
    documented = {int(number) for number in re.findall(r"^\| (\d+) \|", PAGE, flags=re.MULTILINE)}
    assert documented == {int(number) for number in re.findall(r"^ +(\d+) ", status.MEANINGS, flags=re.MULTILINE)}
    assert documented == {status.FINE, status.FAILED, status.WRONG_USAGE, status.WARNED, status.INTERRUPTED}
