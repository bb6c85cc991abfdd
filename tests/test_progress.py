"""How far a run has come: the figures, and where they are shown."""

from __future__ import annotations

import logging
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import programs
from anabranch.divide import Jitted, compiling, name_work
from anabranch.limits import Limits
from anabranch.progress import Lines, Live, Meter, Notebook, Progress, Status, displays, make_progress

NOTEBOOK = """
import anabranch as ab
from anabranch import programs
from anabranch.progress import displays
displays.IN_NOTEBOOK = 0.05
ab.infer(programs.branching, 2.0, budget=20_000).run.evaluations
"""


def at(limits: Limits, elapsed: float) -> Limits:
    """The limits at a time of the run."""
    object.__setattr__(limits, "started", time.monotonic() - elapsed)
    return limits


def status(evaluations: int, sd: float | None = 0.1, found: int = 20) -> Status:
    return Status(found, 8, None if sd is None else -123.456, sd, evaluations, 100_000)


def measured(sd: float | None = 0.1, **limits: Any) -> Meter:
    """A meter after 10,000 evaluations at 1,000 per second."""
    meter = Meter(Limits(100_000, **limits))
    for elapsed in range(11):
        at(meter.limits, elapsed)
        meter.add(status(1000 * elapsed, sd))
    return meter


# Figures --------------------------------------------------------------------------------------------------------------


def test_the_rate_and_the_time_left_to_each_limit() -> None:
    meter = measured(seconds=40.0, tolerance=0.05)
    assert meter.rate == pytest.approx(1000, rel=1e-3)
    left = dict(meter._left())
    assert left["budget"] == pytest.approx(90, rel=1e-3)
    assert left["time"] == pytest.approx(30, abs=0.1)
    assert left["tolerance about"] == pytest.approx(30, rel=1e-3)  # half of the error takes four times as many
    assert meter.share == pytest.approx(0.25, abs=0.01)
    assert meter.lines()[2] == "left to each limit: budget 1:30, time 0:30, tolerance about 0:30"
    assert meter.line().startswith("20 paths, 8 active, log evidence -123.46 ± 0.10, 10,000 of 100,000 evaluations, ")


def test_what_is_not_known_is_not_said() -> None:
    first = Meter(Limits())
    assert first.lines() == ["finding paths, 0:00"]
    first.add(status(0, None))
    assert first.lines() == ["20 paths, 8 active, no evidence by this engine", "0 of 100,000 evaluations, 0:00"]
    assert "tolerance" not in measured(np.inf).lines()[2]
    assert "tolerance" not in measured(None).lines()[2]
    assert "tolerance" not in measured(tolerance=None).lines()[2]


def test_a_line_fits_eighty_columns_whatever_is_compiled() -> None:
    meter = measured(seconds=1e5)
    meter.add(Status(123_456_789, 12_345_678, -123_456_789.123, 1e-5, 10**14, 10**15))
    seen: list[list[str]] = []

    def function(x: Any) -> Any:
        seen.append(meter.lines())  # while it is traced, to be compiled
        return x + 1

    def work() -> None:
        name_work("K = 5, " * 30)
        Jitted(function)(np.zeros(3))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen[0][-1].startswith("compiling a density of K = 5, K = 5")
    assert max(map(len, seen[0])) <= 80
    assert compiling() == []


# Displays -------------------------------------------------------------------------------------------------------------


def test_the_place_decides_on_the_display(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(make_progress(False)) is Progress
    assert type(make_progress(None)) is Lines
    assert type(make_progress(True)) is Lines
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert type(make_progress(None)) is Live
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=1)))
    assert type(make_progress(None)) is Notebook
    assert type(make_progress(False)) is Progress


def test_a_terminal_shows_a_bar_and_figures_that_go_away(capsys: pytest.CaptureFixture[str]) -> None:
    with Live(Limits(100, seconds=50)) as live:
        live.update(Status(3, 2, -5.0, 0.1, 50, 100))
        shown = live.words().splitlines()
        live.draw()
    assert shown[0] == f"{'━' * 15}{'╌' * 15} 50 %"
    assert shown[1] == "3 paths, 2 active, log evidence -5.00 ± 0.10"
    assert shown[2].startswith("50 of 100 evaluations")
    assert capsys.readouterr().out == ""


def test_lines_go_to_the_log_and_only_of_a_long_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO, "anabranch")
    with make_progress(None) as short:
        short.update(status(10))
    assert caplog.messages == []
    monkeypatch.setattr(displays, "IN_LOG", 0.01)
    with make_progress(None) as long:
        long.update(status(10))
        _until(lambda: bool(caplog.messages))
    words = "20 paths, 8 active, log evidence -123.46 ± 0.10, 10 of 100,000 evaluations, 0:00"
    assert words in caplog.messages
    assert capsys.readouterr().err == ""
    said: list[str] = []
    with make_progress(True) as long:  # asked for: they are printed, whatever is logged
        long.update(status(10))
        _until(lambda: said.append(capsys.readouterr().err) or words in "".join(said))
    assert words in "".join(said)


def _until(is_so: Any) -> None:
    end = time.monotonic() + 30
    while not is_so() and time.monotonic() < end:
        time.sleep(0.01)


def test_a_display_changes_no_answer_and_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    shown = ab.infer(programs.branching, 2.0, budget=5000, progress=True)
    assert shown.log_evidence == ab.infer(programs.branching, 2.0, budget=5000, progress=False).log_evidence
    with pytest.raises(ZeroDivisionError):
        ab.infer(lambda: 1 / 0, progress=True)
    assert "anabranch-progress" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.slow
def test_a_notebook_shows_the_figures_below_the_cell() -> None:
    nbclient = pytest.importorskip("nbclient", reason="no notebooks: pip install nbclient ipykernel")
    pytest.importorskip("ipykernel")
    import nbformat

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(NOTEBOOK)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "", "language": "python"}
    nbclient.NotebookClient(notebook, timeout=300).execute()
    # The warning is NumPyro's, whose bars would be widgets.
    outputs = [each for each in notebook.cells[0].outputs if "TqdmWarning" not in each.get("text", "")]
    assert [each["output_type"] for each in outputs] == ["display_data", "execute_result"]  # one display, updated
    shown = outputs[0]["data"]
    assert "2 paths, 2 active, log evidence -3.1" in shown["text/plain"]
    assert "20,000 evaluations" in shown["text/plain"]
    assert "<progress" not in shown["text/html"]  # the run has ended
