"""The tests at both ends of the ranges of versions in pyproject.toml: `make test-versions`, or `nox -s oldest`.

The environments are made once, in .nox. Arguments after `--` go to pytest.
"""

import re
import tomllib
from pathlib import Path

import nox

PROJECT = tomllib.loads(Path("pyproject.toml").read_text())["project"]
TOOLS = [
    tool
    for tool in PROJECT["optional-dependencies"]["dev"]
    if tool.startswith(("pytest", "hypothesis", "funsor", "selenium", "ipykernel", "nbclient"))
]
REQUIREMENTS = [*PROJECT["dependencies"], *TOOLS]

nox.options.reuse_venv = "yes"
nox.options.sessions = ["oldest", "newest"]


def _test(session: nox.Session, *install: str) -> None:
    session.install("-e", ".", *install)
    session.run("python", "-m", "pip", "freeze", "--exclude-editable")
    session.run("python", "-m", "pytest", "-n", "2", "-m", "not slow", *session.posargs)


@nox.session(python="3.11")
def oldest(session: nox.Session) -> None:
    """The oldest Python, and of each package the oldest version that pyproject.toml allows."""
    _test(session, *[re.sub(r">=([\w.]+).*", r"==\1", requirement) for requirement in REQUIREMENTS])


@nox.session(python="3.13")
def newest(session: nox.Session) -> None:
    """The newest Python, and of each package the newest version."""
    _test(session, "--upgrade", *REQUIREMENTS)


@nox.session
def ray(session: nox.Session) -> None:
    """The executor that needs Ray, which `make test` leaves out."""
    session.install("-e", ".[ray]", *TOOLS)
    pages = "tests/test_docs.py"
    session.run("python", "-m", "pytest", "-k", "ray or actor or scale", "tests/execution", pages, *session.posargs)
