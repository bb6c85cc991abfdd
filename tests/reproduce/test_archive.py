"""Records in one file: figures, tables and the page of the documentation come from it, without any inference."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

import anabranch as ab
from anabranch import command
from anabranch.reproduce import archive, docs_page, experiments, records, reproduction, table
from anabranch.reproduce.truth import all_truths

DOCS = Path(__file__).parent.parent.parent / "docs"
STORED = DOCS / "reproduction" / archive.ARCHIVE


def record(method: str, seed: int, **changed: object) -> records.Record:
    """The record of a run of the mixture that did well."""
    evaluations = np.unique(np.geomspace(100, 1_000_000, 3_000).astype(int)).tolist()
    return {
        "experiment": "gmm", "method": method, "seed": seed, "budget": 1_000_000, "settings": "DCC()", "version": "1.0",
        "commit": "0123456789ab", "machine": "a computer", "evaluations": 1_000_000, "seconds": 12.0,
        "log_evidence": -132.6, "log_evidence_sd": 0.01, "paths": 25 + seed,
        "history": {"evaluations": evaluations, "log_evidence": [-132.6] * len(evaluations)},
        "probability": {"5": 1.0}, "discovered": 10_000 * (1 + seed), "least_K": 2, "chains": 0, "chains_that_moved": 0,
        "predictive": {"y": [0.0, 10.0, 20.0], "density": [0.05, 0.05, 0.05]}, **changed,
    }  # fmt: skip


RECORDS = [record("default", 0), record("default", 1, commit="ba9876543210"), record("is", 0, log_evidence=None)]


def test_a_record_names_the_commit_and_the_machine(tmp_path: Path) -> None:
    made = records.run(records.Task("gmm", "is", 0, 500), tmp_path)
    assert made["version"] == ab.__version__
    assert made["commit"] == records.commit()
    assert records.commit() is None or len(records.commit().rstrip("+")) == 12
    assert "core" in made["machine"]
    assert made["python"].startswith("3.")


def test_packing_keeps_everything_but_parts_of_long_curves(tmp_path: Path) -> None:
    file = tmp_path / archive.ARCHIVE
    archive.pack(RECORDS, file)
    for before, after in zip(RECORDS, archive.unpack(file), strict=True):
        assert {k: v for k, v in after.items() if k != "history"} == {k: v for k, v in before.items() if k != "history"}
        long, short = before["history"]["evaluations"], after["history"]["evaluations"]
        assert (short[0], short[-1]) == (long[0], long[-1])
        assert set(short) <= set(long)
        assert 200 < len(short) == len(after["history"]["log_evidence"]) <= 302
        assert max(np.diff(np.log(short))) < 0.15
    archive.pack(RECORDS, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == file.read_bytes()


def test_a_reproduction_leaves_its_records_in_one_file_that_makes_it_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reproduction.figures, "draw_all", lambda *_: None)
    for made in (records.run(records.Task("gmm", "is", seed, 500), tmp_path / "first") for seed in (0, 1)):
        assert made["evaluations"] == 500
    arguments = ["reproduce", "gmm", "--methods", "is", "--budget", "500"]
    assert command.main([*arguments, "--runs", "2", "--out", str(tmp_path / "first")]) == 0
    monkeypatch.setattr(reproduction, "_run_all", None)  # nothing is run again
    file = tmp_path / "first" / archive.ARCHIVE
    assert command.main(["reproduce", "all", "--from-records", str(file), "--out", str(tmp_path / "second")]) == 0
    first, second = ((tmp_path / name / "table.csv").read_bytes() for name in ("first", "second"))
    assert first == second
    assert "Importance sampling" in (tmp_path / "second" / "report.html").read_text(encoding="utf-8")
    with pytest.raises(SystemExit):
        command.main(["reproduce", "all", "--from-records", str(tmp_path / "none"), "--out", str(tmp_path / "third")])
    assert "No such file" in capsys.readouterr().err


def test_the_numbers_of_a_page_are_those_of_the_records(tmp_path: Path) -> None:
    parts = {"runs": "old", "gmm": "old", "induction": "kept"}
    page = "\n\n".join(f"<!-- {name} -->\n{text}\n<!-- end -->" for name, text in parts.items())
    truths = all_truths()
    new = docs_page.updated(page, RECORDS, truths)
    assert table.markdown(table.tables(RECORDS, truths)["gmm"]) in new
    assert "| gmm | Anabranch (default) | 2 | 15 | 0123456789ab, ba9876543210 | a computer |\n" in new
    assert "| gmm | Importance sampling | 1 | 15 | 0123456789ab | a computer |\n" in new
    assert "<!-- induction -->\nkept\n<!-- end -->" in new
    assert docs_page.updated(new, RECORDS, truths) == new
    changed = [record("default", 0, log_evidence=-132.0), *RECORDS[1:]]
    assert docs_page.updated(new, changed, truths) != new


def test_the_page_of_the_documentation_has_a_place_for_every_table() -> None:
    page = (DOCS / "reproduction.md").read_text(encoding="utf-8")
    for experiment in experiments.EXPERIMENTS:
        assert f"<!-- {experiment}_pictures -->" in page
        assert (f"<!-- {experiment} -->" in page) == (experiment != "planar")
    assert page.count("<!-- end -->") == len(re.findall(r"<!-- (?!end )\w+ -->", page)) == 18


@pytest.mark.parametrize("page", [DOCS / "reproduction.md", DOCS / "theory.md", DOCS.parent / "README.md"])
def test_pages_of_the_documentation_have_the_numbers_of_the_stored_records(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<!-- end -->" in text
    assert docs_page.updated(text, archive.unpack(STORED), all_truths()) == text


def test_the_stored_records_name_commits_and_no_place() -> None:
    stored = archive.unpack(STORED)
    assert STORED.stat().st_size < 3_000_000
    assert all(re.fullmatch("[0-9a-f]{12}", each["commit"]) for each in stored)
    assert b"/home" not in (data := gzip.decompress(STORED.read_bytes()))
    assert b"/work" not in data


def test_only_the_functions_that_are_shown_are_kept(tmp_path: Path) -> None:
    curves = {"x": [0.0], "f": [[1.0]]}
    runs = [
        record("default", seed, experiment="induction", lppd=-seed, functions=curves, resources={}) for seed in range(3)
    ]
    archive.pack(runs, tmp_path / "packed")
    assert [each["functions"] for each in archive.unpack(tmp_path / "packed")] == [curves, None, None]


def test_a_page_gets_the_numbers_and_the_pictures(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "visits.png").write_bytes(b"new")
    (tmp_path / "pictures").mkdir()
    page = tmp_path / "page.md"
    page.write_text("<!-- gmm -->\n<!-- end -->\n<!-- gmm_pictures -->\n<!-- end -->\n![x](pictures/visits.png)\n")
    docs_page.update(page, RECORDS, all_truths(), tmp_path / "figures")
    assert "| Anabranch (default) | 2 |" in page.read_text()
    assert (tmp_path / "pictures" / "visits.png").read_bytes() == b"new"
    assert "![Probability of five clusters](reproduction/probability.png)\n<!-- end -->" in page.read_text()
