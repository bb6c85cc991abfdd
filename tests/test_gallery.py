"""The problems of the gallery are solved, in a quick form, and its page has the programs as they are."""

import importlib
import json
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "examples" / "gallery"
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
QUICK = {"dose_response", "polynomial"}
"""The others take some tens of seconds."""
PROBLEMS = sorted({file.stem for file in FOLDER.glob("*.py")} - {"build", "references", "importance"})


@pytest.fixture
def gallery(monkeypatch):
    """Imports a file of the gallery's folder, as its scripts do."""
    monkeypatch.syspath_prepend(FOLDER)
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if (FOLDER / f"{name}.py").exists():
            del sys.modules[name]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in PROBLEMS]
)
def test_a_problem_is_solved(gallery, name, tmp_path, capsys):
    """Answers are within four of their errors of the references, which are known to 0.01."""
    file = tmp_path / "picture.png"
    limits = {"budget": 2_000} if name == "epidemic" else {"budget": 100_000}
    posterior = gallery(name).main(file, tolerance=0.1, **limits)
    assert file.stat().st_size > 5_000
    assert "probability" in capsys.readouterr().out.removeprefix(str(posterior))
    check = getattr(gallery("references"), name, lambda posterior: [])
    what, ours, error, truth = next(iter(check(posterior)), ("nothing", 0.0, 0.0, 0.0))
    assert abs(ours - truth) < 4 * error + 0.02, what
    assert error < 1.0, what


def test_the_page_is_that_of_the_scripts(gallery):
    """Records of all problems, and the programs as they are now."""
    build = gallery("build")
    records = json.loads(build.RECORDS.read_text(encoding="utf-8"))
    assert sorted(build.PROBLEMS) == sorted(records) == PROBLEMS
    assert build.page(records) == (build.DOCS / "gallery.md").read_text(encoding="utf-8")


def test_recorded_answers_agree_with_references(gallery):
    """Within four errors, and 0.01 for those of the references."""
    for name, record in json.loads(gallery("build").RECORDS.read_text(encoding="utf-8")).items():
        for what, ours, error, truth in record["checks"]:
            assert abs(ours - truth) < 4 * error + 0.01, f"{name}: {what}"


def test_data_name_their_source():
    for file in (FOLDER / "data").glob("*.csv"):
        assert "# Source: " in file.read_text(encoding="utf-8"), file.name


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(file):
    notebook = nbformat.read(file, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "stored without outputs"
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(file.parent)}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in shown)
