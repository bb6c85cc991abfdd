"""The report: one page that says what the posterior says, for everybody, whatever its paths, names and engine."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
import browser
import solved
import wide
from anabranch import programs
from anabranch.combine import Posterior, Solution
from anabranch.combine.evidence import Evidence
from anabranch.report.page import about, diagnostics, pictures, tables, tree
from anabranch.report.page.elements import slug

VOID = {"meta", "img", "br", "link", "input"}
SAMPLE, NORMAL = ab.sample, dist.Normal


class Reader(HTMLParser):
    """What a page has: elements that are closed in order, headings, identifiers, and text by table."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, Any]]] = []
        self.rows: list[list[str]] = []
        self.words: list[str] = []
        self.feed(content)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data
        if "style" not in self.open and "script" not in self.open:
            self.words.append(data)

    def all(self, *tags: str) -> list[dict[str, Any]]:
        return [attributes for tag, attributes in self.found if tag in tags]

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


def read(posterior: Posterior, folder: Path) -> tuple[str, Reader]:
    posterior.report(folder / "new" / "report.html")
    assert [file.name for file in (folder / "new").iterdir()] == ["report.html"]
    content = (folder / "new" / "report.html").read_text(encoding="utf-8")
    return content, Reader(content)


@pytest.fixture
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take most of the time."""
    monkeypatch.setattr(pictures, "figures", lambda *_: "")


@pytest.fixture(scope="module")
def posterior() -> Posterior:
    return solved.posterior(solved.divided(), n=1000)


@pytest.fixture(scope="module")
def written(posterior: Posterior, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    posterior.report(file)
    return file


@pytest.fixture(scope="module")
def reader(written: Path) -> Reader:
    return Reader(written.read_text(encoding="utf-8"))


# What it says ---------------------------------------------------------------------------------------------------------


def test_the_tables_have_the_numbers_of_the_posterior(posterior: Posterior, reader: Reader) -> None:
    rows = {row[0]: row for row in reader.rows}
    for solution, weight in zip(posterior.solutions, posterior.evidence.weights, strict=True):
        row = rows[solution.path.description]
        if f"{weight:.3f}" not in row[1]:
            assert float(row[1].split()[0].strip("(")) == pytest.approx(weight, rel=0.01)
        assert float(row[2].split()[0]) == pytest.approx(solution.log_evidence, abs=0.01)
        assert row[9] == solution.estimate.method
    summary = posterior.summary()
    assert float(rows["mu"][1]) == pytest.approx(summary.loc["mu", "mean"], rel=1e-3)
    assert f"log evidence {posterior.log_evidence:.2f}"[:-1] in reader.text
    assert "The example ended." in reader.text
    assert "def choice(y: Any)" in reader.text  # the program
    assert "ab.infer(choice, np.array([0.9, 1.6, 0.4, 1.3]), seed=0" in reader.text
    assert "No diagnostic gives a warning." in reader.text


def test_there_is_a_picture_of_each_kind_with_words_for_it(reader: Reader) -> None:
    images = reader.all("img")
    assert len(images) >= 8
    for image in images:
        assert len(image["alt"]) > 30
        assert image["src"].startswith(("data:image/svg+xml;base64,", "data:image/png;base64,"))


def test_the_page_needs_no_network(written: Path) -> None:
    without_images = re.sub(r'src="data:[^"]*"', "", written.read_text(encoding="utf-8"))
    assert not re.search(r"https?:|src=|@import|url\(|<link", without_images)


def test_the_structure_is_one_for_screen_readers(reader: Reader) -> None:
    levels = [int(tag[1]) for tag, _ in reader.found if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(below <= above + 1 for above, below in pairwise(levels))
    for landmark in ("header", "nav", "main", "footer"):
        assert len(reader.all(landmark)) == 1
    assert reader.all("html")[0]["lang"] == "en"
    identifiers = Counter(attributes["id"] for _, attributes in reader.found if "id" in attributes)
    assert max(identifiers.values()) == 1
    for link in reader.all("a"):
        assert link["href"].removeprefix("#") in identifiers
    assert len(reader.all("caption")) == len(reader.all("table"))
    assert all(header["scope"] in ("col", "row") for header in reader.all("th"))


def test_the_same_posterior_gives_the_same_page(posterior: Posterior, tmp_path: Path, monkeypatch: Any) -> None:
    one = pictures.Picture("Weights", "Bars.", posterior.plot.weights)
    monkeypatch.setattr(pictures, "_all", lambda *_: [one])
    first, reader = read(posterior, tmp_path)
    assert len(reader.all("img")) == 1
    assert read(posterior, tmp_path)[0] == first


# Whatever the posterior -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_pictures")
def test_names_are_escaped(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script>'

    def program() -> None:
        chosen = SAMPLE(evil, dist.Bernoulli(0.5))
        SAMPLE('a & "b" <i>', NORMAL(1.0 if chosen else 0.0, 1.0))

    program.__name__ = "<u>&"
    division = ab.find_paths(program, executions=50)
    made = [solved.Solution(path, None) for path in division]
    drawn = [Solution(each.path, _drawn(each.path), 1) for each in made]
    run = solved.run(notes=("x < 1 & <b>more</b>",), unmet=("`a < b` was never true",), settings="DCC(<s>)")
    content, reader = read(Posterior(division.program, drawn, run), tmp_path)
    assert "<script>alert" not in content
    assert "<b>more" not in content
    assert reader.rows  # and all elements are closed in order
    for words in (evil, 'a & "b" <i>', "Posterior of <u>&", "x < 1 & <b>more</b>", "`a < b` was never true"):
        assert words in reader.text


def _drawn(path: ab.Path) -> Any:
    from anabranch.conquer.estimate import Estimate

    points = np.linspace(-1, 1, 20)[:, None] * np.ones(path.dim)
    return Estimate.from_draws(points, np.zeros(20), -1.0, 0.01, 20, "Draws")


@pytest.mark.usefixtures("without_pictures")
def test_paths_without_an_estimate_or_without_mass_have_a_row(posterior: Posterior, tmp_path: Path) -> None:
    first, second, third = posterior.solutions
    none = replace(second.estimate, log_evidence=-np.inf, log_evidence_sd=np.inf)
    solutions = [first, replace(second, estimate=none), Solution(third.path, None, 3)]
    _, reader = read(Posterior(posterior.program, solutions, posterior.run), tmp_path)
    rows = {row[0]: row for row in reader.rows if len(row) == 11}
    assert rows[third.path.description][1:4] == ["-", "-", "-"]
    assert rows[third.path.description][9] == "given up"
    assert rows[second.path.description][1].startswith("0 ±")
    _, reader = read(Posterior(posterior.program, [Solution(third.path, None)], posterior.run), tmp_path)
    assert "not visited" in reader.text
    _, reader = read(Posterior(posterior.program, [], posterior.run, Evidence(None, None, np.zeros(0), np.zeros(0))),
                     tmp_path)  # fmt: skip
    assert "The run found no path." in reader.text


def test_what_cannot_be_drawn_is_said(posterior: Posterior, tmp_path: Path) -> None:
    """Of one path, without evidence and without the program."""
    weights = Evidence(None, None, np.ones(1), np.zeros(1))
    Posterior(posterior.program, posterior.solutions[:1], posterior.run, weights).save(tmp_path / "run")
    _, reader = read(ab.load(tmp_path / "run"), tmp_path)
    assert "log evidence not given by importance" in reader.text
    assert "Evidence during the run: the run has no history of its evidence." in reader.text
    assert "Decisions: no site or deterministic has different values" in reader.text
    assert "Data and replicated data: this answer runs the program" in reader.text
    assert len(reader.all("img")) >= 5


def test_a_picture_that_fails_does_not_lose_the_page(posterior: Posterior, caplog: Any, monkeypatch: Any) -> None:
    def draw() -> Any:
        raise ZeroDivisionError("x < 0")

    monkeypatch.setattr(pictures, "_all", lambda *_: [pictures.Picture("Bad", "None.", draw)])
    assert "<li>Bad: ZeroDivisionError: x &lt; 0</li>" in pictures.figures(posterior.plot, [])
    assert "the picture 'Bad' could not be drawn" in caplog.text


@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize("engine", [ab.engines.RandomWalkMH(chains=4), ab.engines.SMC(particles=200), ab.DCC.paper()])
def test_every_engine_has_a_page(engine: Any, tmp_path: Path) -> None:
    posterior = ab.infer(programs.branching, 2.0, engine=engine, budget=2000)
    _, reader = read(posterior, tmp_path)
    assert f"seed=0, budget=2_000, tolerance=0.005, engine=ab.{_name(engine)}(" in reader.text
    assert "z0" in {row[0] for row in reader.rows}
    assert (posterior.log_evidence is None) == ("log evidence not given by RandomWalkMH" in reader.text)


def _name(engine: Any) -> str:
    name = repr(engine).partition("(")[0]
    return name if name == "DCC.paper" else f"engines.{name}"


def test_many_paths_give_a_page_of_bounded_size(tmp_path: Path) -> None:
    few = wide.perturbed(wide.posterior(), 0.1, np.random.default_rng(0))
    many = Posterior(few.program, few.solutions * (1500 // len(few.solutions)), few.run)
    content, reader = read(many, tmp_path)
    assert len(content) < 1_500_000
    assert f"The {tables.MAX_ROWS} heaviest of {len(many.solutions):,} paths" in reader.text
    assert f"{len(many.solutions) - tables.MAX_ROWS:,} more paths, with a total weight of" in reader.text
    row = next(row for row in reader.rows if row[0] == "z1 = 1")
    assert float(row[1].split()[0]) == pytest.approx(wide.inclusion(few)[1], abs=0.1)
    assert len(reader.all("tr")) < 3 * tables.MAX_ROWS


@pytest.mark.usefixtures("without_pictures")
def test_a_loaded_posterior_has_the_same_page_without_its_program(posterior: Posterior, tmp_path: Path) -> None:
    posterior.save(tmp_path / "run")
    expected, _ = read(posterior, tmp_path)
    loaded, reader = read(ab.load(tmp_path / "run"), tmp_path)
    assert "ab.infer(choice, *data, seed=0" in reader.text
    of_call = "(import numpy as np\n)?\nposterior = ab.infer.*"
    assert re.sub(of_call, "", loaded) == re.sub(of_call, "", expected)


def test_long_vectors_are_left_out_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "figures", lambda *_: "")

    def program() -> None:
        SAMPLE("long", NORMAL(0.0, 1.0).expand([300]).to_event(1))
        SAMPLE("short", NORMAL(0.0, 1.0).expand([2]).to_event(1))

    division = ab.find_paths(program, executions=10)
    solution = Solution(division.paths[0], _drawn(division.paths[0]), 1)
    _, reader = read(Posterior(division.program, [solution], solved.run()), tmp_path)
    assert {row[0] for row in reader.rows} >= {"short[0]", "short[1]"}
    assert "Left out: long. posterior.summary has them." in reader.text
    assert not any(row[0].startswith("long") for row in reader.rows)


# Its parts ------------------------------------------------------------------------------------------------------------


def test_diagnostics_pass_and_fail_as_the_warnings_say(posterior: Posterior) -> None:
    def states(**changes: Any) -> dict[str, bool | None]:
        first = posterior.solutions[0]
        changed = [replace(first, estimate=replace(first.estimate, **changes)), *posterior.solutions[1:]]
        made = Posterior(posterior.program, changed, posterior.run)
        return {each.name: each.passed for each in diagnostics.checks(made.solutions, made.evidence, made.run)}

    assert False not in states().values()
    for name, changes in {
        "effective draws of a path": {"ess": 12.0},
        "Pareto k of the weights of a path": {"pareto_k": 0.9},
        "R-hat of the chains of a path": {"r_hat": 1.2},
        "error of the log evidence": {"log_evidence_sd": 0.5},
        "a second method confirms the estimate of a path": {"is_confirmed": False},
    }.items():
        assert [each for each, passed in states(**changes).items() if passed is False] == [name]


def test_the_tree_opens_where_the_mass_is_and_ends_at_a_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    def deep() -> None:
        n = 0
        while ab.sample(f"again{n}", dist.Bernoulli(0.5)):
            n += 1

    division = ab.find_paths(deep, executions=200)
    solutions = [Solution(path, _drawn(path), 1) for path in division]
    weights = np.array([path.prior_probability for path in division])
    made = tree.nested(solutions, weights)
    Reader(made)
    assert made.count("<details open>") == sum(0.5**depth >= tree.OPEN for depth in range(1, 20))
    monkeypatch.setattr(tree, "MAX_DEPTH", 2)
    assert tree.nested(solutions, weights).count("<details") == 1
    assert "ends below" in tree.nested(solutions, weights)


def test_the_call_repeats_the_run() -> None:
    posterior = ab.infer(programs.branching, np.array(2.0), budget=3000, seed=4, engine=ab.engines.SMC(particles=100))
    space: dict[str, Any] = {"branching": programs.branching}
    exec(about.call(posterior.program, posterior.run), space)
    assert space["posterior"].log_evidence == posterior.log_evidence


# In a browser ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def driver() -> Any:
    with browser.opened() as found:
        yield found


def by(driver: Any, css: str) -> Any:
    return driver.find_element("css selector", css)


def test_a_header_sorts_by_the_keyboard(driver: Any, written: Path, posterior: Posterior) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.show(driver, written)
    headers = driver.find_elements("css selector", "table.paths thead th")
    names = lambda: [e.text for e in driver.find_elements("css selector", "table.paths tbody th")]  # noqa: E731
    by_weight = names()
    button = headers[6].find_element("css selector", "button")
    assert button.text.startswith("dimensions")
    button.send_keys(Keys.ENTER)
    assert headers[6].get_attribute("aria-sort") == "descending"
    by_dim = sorted(posterior.solutions, key=lambda solution: -solution.path.dim)
    assert names() == [solution.path.description for solution in by_dim]
    assert by(driver, "#said").get_attribute("textContent") == "Sorted by dimensions, descending."
    button.send_keys(Keys.SPACE)
    assert headers[6].get_attribute("aria-sort") == "ascending"
    assert names() == [solution.path.description for solution in by_dim[::-1]]
    assert driver.execute_script("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    headers[1].find_element("css selector", "button").send_keys(Keys.ENTER)
    assert headers[6].get_attribute("aria-sort") is None
    assert names() == by_weight


def test_the_keyboard_reaches_everything_from_the_link_at_the_top(driver: Any, written: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser.show(driver, written)
    ActionChains(driver).send_keys(Keys.TAB).perform()
    focus = driver.switch_to.active_element
    assert focus.text == "Skip to the content"
    focus.send_keys(Keys.ENTER)
    assert driver.switch_to.active_element.get_attribute("id") == "content"
    wanted = {"decision", "path", "variable"}
    for _ in range(60):
        ActionChains(driver).send_keys(Keys.TAB).perform()
        wanted.discard(driver.switch_to.active_element.text.strip(" ↕▲▼"))
    assert not wanted


def test_the_tree_opens_and_closes(driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from selenium.webdriver.common.keys import Keys

    monkeypatch.setattr(pictures, "figures", lambda *_: "")

    def program() -> None:
        if ab.sample("a", dist.Bernoulli(0.5)):
            ab.sample("x" if ab.sample("b", dist.Bernoulli(0.5)) else "y", dist.Normal(0.0, 1.0))

    division = ab.find_paths(program, executions=200)
    solutions = [Solution(path, _drawn(path), 1) for path in division]
    Posterior(division.program, solutions, solved.run()).report(tmp_path / "tree.html")
    browser.show(driver, tmp_path / "tree.html")
    line = by(driver, ".tree details")
    assert line.get_attribute("open") is not None
    line.find_element("css selector", "summary").send_keys(Keys.ENTER)
    assert line.get_attribute("open") is None
    by(driver, "[data-tree=open]").send_keys(Keys.ENTER)
    assert all(each.get_attribute("open") for each in driver.find_elements("css selector", ".tree details"))
    by(driver, "[data-tree=close]").click()
    assert not any(each.get_attribute("open") for each in driver.find_elements("css selector", ".tree details"))


def test_a_phone_and_the_dark_show_it_without_scrolling_sideways(driver: Any, tmp_path: Path, written: Path) -> None:
    """Also with long names; nothing is loaded, nothing fails, and pictures are there."""
    long = Path(tmp_path / "long.html")
    words = "a_name_without_a_place_for_a_break_" * 9
    long.write_text(written.read_text(encoding="utf-8").replace("model", words), encoding="utf-8")
    for file in (written, long):
        browser.show(driver, file, 360, 740)
        inside = driver.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
        assert inside[0] <= inside[1] == 360
    browser.show(driver, written, is_dark=True)
    back = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert max(map(int, re.findall(r"\d+", back)[:3])) < 60
    assert driver.execute_script("return [...document.images].every(each => each.complete && each.naturalWidth > 100)")
    assert driver.execute_script("return performance.getEntriesByType('resource').filter("
                                 "each => !each.name.startsWith('data:')).length") == 0  # fmt: skip
    assert driver.get_log("browser") == []


def test_the_names_of_sections_are_identifiers() -> None:
    assert slug("Tree of paths") == "tree-of-paths"
