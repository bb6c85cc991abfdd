"""Displays of a run: lines that are drawn anew in a terminal or a notebook, and a line now and then elsewhere.

A thread draws them: nothing is reported while a path is compiled, which is when people wonder.
"""

from __future__ import annotations

import contextvars
import html
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any, Self

from anabranch.limits import Limits
from anabranch.progress.meter import WIDTH, Meter, Status
from anabranch.report.table import terminal_width

__all__ = ["Lines", "Live", "Notebook", "Progress", "make_progress"]

logger = logging.getLogger("anabranch")

IN_TERMINAL, IN_NOTEBOOK, IN_LOG = 0.25, 0.5, 30.0
"""Seconds between two drawings."""
BAR = 30
"""Characters of the bar."""


class Progress:
    """A context in which a run reports its status. This one shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def update(self, status: Status) -> None:
        """Report the status after a round."""


class _Drawn(Progress):
    """A display that a thread draws every so many seconds, for the first time after them."""

    def __init__(self, limits: Limits, every: float) -> None:
        self.meter = Meter(limits)
        self._every, self._ended = every, threading.Event()
        # A notebook knows by the context to which cell an output belongs.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._work,), name="anabranch-progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def update(self, status: Status) -> None:
        self.meter.add(status)

    def _work(self) -> None:
        while not self._ended.wait(self._every):
            self.draw()

    def draw(self) -> None:
        """Show how far the run has come."""


class Live(_Drawn):
    """A bar and a few lines of figures on standard error, removed when the run ends."""

    def __init__(self, limits: Limits) -> None:
        from rich.console import Console
        from rich.live import Live as Display

        super().__init__(limits, IN_TERMINAL)
        self._display = Display(console=Console(stderr=True), transient=True, auto_refresh=False)

    def __enter__(self) -> Self:
        self._display.start()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._display.stop()

    def draw(self) -> None:
        from rich.text import Text

        self._display.update(Text(self.words(), no_wrap=True), refresh=True)

    def words(self) -> str:
        """The bar and the figures, in lines that fit the terminal and 80 columns."""
        full = round(BAR * self.meter.share)
        bar = f"{'━' * full}{'╌' * (BAR - full)} {100 * self.meter.share:.0f} %"
        return "\n".join([bar, *self.meter.lines(min(terminal_width(), WIDTH) - 1)])


class Notebook(_Drawn):
    """A bar and the figures below the cell; what they were at the end stays."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits, IN_NOTEBOOK)
        self._handle: Any = None

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self._handle is not None:
            self._handle.update(_Shown(self.meter.line(), 1.0))

    def draw(self) -> None:
        from IPython.display import display

        shown = _Shown("\n".join(self.meter.lines()), self.meter.share)
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)


class _Shown:
    """What a notebook shows: text, or the same with a bar."""

    def __init__(self, words: str, share: float) -> None:
        self.words, self.share = words, share

    def __repr__(self) -> str:
        return self.words

    def _repr_html_(self) -> str:
        bar = f'<progress max="1" value="{self.share:.3f}" aria-label="share of the limits"></progress>'
        return f'{bar if self.share < 1 else ""}<pre style="margin:0">{html.escape(self.words)}</pre>'


class Lines(_Drawn):
    """A line every half a minute, where nothing can be drawn anew: nothing for a short run."""

    def __init__(self, limits: Limits, say: Callable[[str], object]) -> None:
        super().__init__(limits, IN_LOG)
        self._say = say

    def draw(self) -> None:
        self._say(self.meter.line())


def make_progress(wanted: bool | None, limits: Limits | None = None) -> Progress:
    """The display for this place: a terminal, a notebook, or neither; none if it is not wanted.

    Where there is neither, lines go to the log, as information, or to standard error if a display is wanted.
    """
    limits = Limits() if limits is None else limits
    if wanted is False:
        return Progress()
    if _is_notebook():
        return Notebook(limits)
    if sys.stderr is not None and sys.stderr.isatty():
        return Live(limits)
    return Lines(limits, _print if wanted else logger.info)


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _is_notebook() -> bool:
    """Whether the code runs in the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")
