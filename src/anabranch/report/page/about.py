"""How to repeat a run: the program, the call, the settings and the versions."""

from __future__ import annotations

from typing import Any

import numpy as np

from anabranch.combine.solution import Run
from anabranch.divide import Program, source_of
from anabranch.report.page.elements import code, facts, paragraph
from anabranch.report.table import shortened
from anabranch.versions import installed

__all__ = ["call", "program", "run"]

MAX_SOURCE, MAX_SETTINGS, MAX_ARGUMENT = 50_000, 20_000, 60
"""Characters of the program, of the settings, and of an argument."""


def program(made: Program) -> str:
    """The text of the program."""
    source = source_of(made.function)
    if not source:
        return paragraph("The text of the program is not to be had: it was not read from a file.")
    return code(shortened(source, MAX_SOURCE), f"Program {made.name}")


def run(made: Program, how: Run) -> str:
    """The call, the settings, and the versions of then and, where they differ, of now."""
    changed = {name: version for name, version in installed().items() if how.versions.get(name) != version}
    now = f"This page was written with {', '.join(f'{name} {v}' for name, v in changed.items())}."
    return "\n".join([
        paragraph("To repeat the run, with the program and its data:"),
        code(call(made, how), "Call"),
        f"<details><summary>All settings</summary>{code(shortened(how.settings, MAX_SETTINGS), 'Settings')}</details>",
        facts(how.versions.items()),
        paragraph(now if changed else ""),
    ])  # fmt: skip


def call(made: Program, how: Run) -> str:
    """The call of `infer` as Python; arrays among the data are described in a comment."""
    named = [*((None, each) for each in made.args), *made.kwargs.items()]
    words = [("" if name is None else f"{name}=") + _argument(value) for name, value in named]
    if getattr(made.function, "saved", None) is not None:
        words = ["*data"]
    if made.split:
        words.append(f"split={dict(made.split)!r}")
    arguments = [made.name, *words, f"seed={how.seed}", *filter(None, [how.limits, _engine(how.settings)])]
    imports = "import anabranch as ab\n" + "import numpy as np\n" * any("np.array(" in each for each in words)
    return f"{imports}\nposterior = ab.infer({', '.join(arguments)})"


def _argument(value: Any) -> str:
    """A number or a word as it is; of anything else, what it is."""
    if value is None or isinstance(value, bool | int | float | str):
        return shortened(repr(value), MAX_ARGUMENT)
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        values = np.asarray(value)
        short = repr(values.tolist())
        return f"np.array({short})" if len(short) <= MAX_ARGUMENT else f"<array of shape {shape}>"
    short = repr(value)
    return short if len(short) <= MAX_ARGUMENT else f"<{type(value).__name__}>"


def _engine(settings: str) -> str:
    """The argument `engine`; empty for the default one."""
    from anabranch.dcc import DCC

    if not settings or settings == repr(DCC()):
        return ""
    return f"engine=ab.{'' if settings.startswith('DCC') else 'engines.'}{shortened(settings, MAX_SETTINGS)}"
