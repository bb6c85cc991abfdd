"""The code of the documentation runs, page by page, with a small budget; links lead somewhere."""

import functools
import os
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch.combine.posterior import Posterior

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
ELSEWHERE = {"engines.md", "gallery.md"}
"""Pages whose code other tests run: tests/engines/test_docs_page.py, tests/test_gallery.py."""
QUICK = {"numpyro.md", "pymc.md", "howto/slow.md", "howto/priors.md", "howto/proposal.md"}
"""The code of the others takes longer, up to some tens of seconds."""
BUDGET = 20_000


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)


def mixture(y):
    K = ab.sample("K", dist.DiscreteUniform(1, 6))
    mu = [ab.sample(f"mu{k}", dist.Uniform(20 * k / K, 20 * (k + 1) / K)) for k in range(K)]
    clusters = dist.Normal(jnp.stack(mu), 0.5)
    ab.observe("y", dist.MixtureSameFamily(dist.Categorical(jnp.ones(K) / K), clusters), y)


def names_of_the_pages():
    """What docs/infer.md speaks about without defining it: the mixture of the first page, and a second model."""
    y = np.array([2.1, 2.2, 5.7, 5.6, 10.4, 13.2, 13.3, 18.9])
    known = {"ab": ab, "jnp": jnp, "np": np, "dist": dist}
    return known | {"program": mixture, "mixture": mixture, "data": (y,), "y": y, "x": y / 10, "new_x": y, "x_new": y}


@pytest.fixture
def small_runs(monkeypatch):
    """Runs of a page get a small budget, whatever it says: what it shows is how to call, and not how accurate it is."""
    for owner, name in ((ab, "infer"), (Posterior, "more")):
        function = getattr(owner, name)

        @functools.wraps(function)
        def limited(*args, function=function, budget=BUDGET, **settings):
            return function(*args, budget=min(budget, BUDGET), **settings)

        monkeypatch.setattr(owner, name, limited)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if page in QUICK else [pytest.mark.slow])
        for page in PAGES
        if page not in ELSEWHERE and blocks(page)
    ],
)
def test_the_code_of_a_page_runs(page, small_runs, tmp_path, monkeypatch):
    if page == "scale.md":
        pytest.importorskip("ray")  # `make test-ray` has it
    monkeypatch.chdir(tmp_path)
    space = names_of_the_pages()
    for block in blocks(page):
        exec(compile(block, page, "exec"), space)


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *(f"docs/{page}" for page in PAGES)])
def test_links_lead_somewhere(page):
    """To a file of the repository, and to a heading of it."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in links(text):
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        target = (ROOT / page).parent / file if file else ROOT / page
        assert target.exists(), f"{page}: {link}"
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{page}: {link}"


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_menu():
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert set(re.findall(r": ([\w/]+\.md)$", menu, flags=re.MULTILINE)) == set(PAGES)


def test_pictures_are_small():
    for picture in DOCS.rglob("gallery/*.png"):
        assert os.path.getsize(picture) < 60_000, picture.name
