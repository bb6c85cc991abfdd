"""Tables as text and HTML; numbers and the descriptions of paths as text."""

import html
import math
import re
import shutil
import textwrap
from collections.abc import Sequence

__all__ = [
    "between_decisions", "fitted_table", "html_table", "in_columns", "number", "percent", "power_of_ten",
    "share_with_error", "shortened", "terminal_width", "text_table", "with_error", "without_repeats", "wrapped",
]  # fmt: skip

MIN_WIDTH = 60
"""Columns of a terminal, below which a table is no narrower."""
ROOM, MIN_LABEL, MAX_LINES = 40, 24, 3
"""Characters for the first column for which others make room; and that it has at least, and lines, if it is wrapped."""
READABLE = 1e-3
"""The least share that is written without a power of ten."""


def terminal_width() -> int:
    """The columns of the terminal; 80 where there is none."""
    return max(shutil.get_terminal_size().columns, MIN_WIDTH)


def wrapped(text: str, width: int, indent: str = "") -> str:
    """A sentence in lines, of which all but the first are indented."""
    lines = textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def fitted_table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int, drop: Sequence[str]) -> str:
    """The table within a width: the columns named last to first in `drop` are left out, then the first one is wrapped.

    >>> print(fitted_table(["path", "weight", "dim"], [["a = 0, b = 1", "0.9", "3"]], 20, ["dim"]))
    path          weight
    a = 0, b = 1     0.9
    """
    kept, dropped = list(range(len(header))), list(drop)
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    while dropped and width - sum(widths[k] + 2 for k in kept[1:]) < min(widths[0], ROOM):
        kept.remove(header.index(dropped.pop()))
    room = max(width - sum(widths[k] + 2 for k in kept[1:]), MIN_LABEL)
    lines: list[list[str]] = []
    for row in rows:
        label = shortened(row[0], MAX_LINES * (room - 2)) if len(row[0]) > room else row[0]
        first, *others = between_decisions(label, room, "  ") or [""]
        lines.append([first, *(row[k] for k in kept[1:])])
        lines += [[other, *[""] * (len(kept) - 1)] for other in others]
    return text_table([header[k] for k in kept], lines)


def between_decisions(label: str, width: int, indent: str = "") -> list[str]:
    """The label in lines that end after a decision, as far as decisions are shorter than a line.

    >>> between_decisions("a = 0, b = 1, c = 0", 9)
    ['a = 0,', 'b = 1,', 'c = 0']
    """
    joined = re.sub("(?<!,) ", "\u00a0", label)
    lines = textwrap.wrap(joined, width, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines]


def in_columns(rows: Sequence[tuple[str, str]], width: int) -> str:
    """Pairs of a name and a figure one below the other, in as many columns as fit.

    >>> print(in_columns([("z0 = 1", "0.9"), ("z1 = 1", "0.25"), ("z2 = 1", "0.5")], 30))
    z0 = 1   0.9   z2 = 1  0.5
    z1 = 1  0.25
    """
    for count in range(max(min(width // 12, len(rows)), 1), 0, -1):
        height = -(-len(rows) // count)
        columns = [text_table(*_headless(rows[i : i + height])).split("\n") for i in range(0, len(rows), height)]
        widths = [max(map(len, column)) for column in columns]
        if count == 1 or sum(widths) + 3 * (len(widths) - 1) <= width:
            break
    padded = [[*column, *[""] * (height - len(column))] for column in columns]
    lines = zip(*padded, strict=True)
    return "\n".join("   ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _headless(rows: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], Sequence[tuple[str, str]]]:
    return rows[0], rows[1:]


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns side by side, the first aligned to the left, the others to the right.

    >>> print(text_table(["path", "weight"], [["K = 5", "0.9"], ["K = 12", "0.1"]]))
    path    weight
    K = 5      0.9
    K = 12     0.1
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in [header, *rows]:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join([row[0].ljust(len(first)), *others]).rstrip())
    return "\n".join(lines)


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same table as HTML."""

    def line(tag: str, cells: Sequence[str]) -> str:
        side = ["left"] + ["right"] * (len(cells) - 1)
        parts = [f'<{tag} style="text-align:{s}">{html.escape(c)}</{tag}>' for s, c in zip(side, cells, strict=True)]
        return f"<tr>{''.join(parts)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table><thead>{line('th', header)}</thead><tbody>{body}</tbody></table>"


def with_error(value: float, error: float) -> str:
    """A value and its error, to two digits of the error.

    >>> with_error(-12.34567, 0.0213), with_error(0.5, 0.0), with_error(3.0, math.inf)
    ('-12.346 ± 0.021', '0.5 ± 0', '3 ± inf')
    """
    if not (math.isfinite(value) and math.isfinite(error)) or error <= 0:
        return f"{number(value)} ± {number(error)}"
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{number(value)} ± {error:.1g}" if digits > 9 else f"{value:,.{digits}f} ± {error:.{digits}f}"


def share_with_error(value: float, error: float) -> str:
    """A probability and its error, of which a person can read the digits.

    >>> share_with_error(0.5, 0.01), share_with_error(1.23e-5, 2e-7), share_with_error(0.25, 1e-9)
    ('0.500 ± 0.010', '(1.23 ± 0.02)e-5', '0.25 ± 1e-9')
    >>> share_with_error(3e-25, 2e-12)
    '3e-25 ± 2e-12'
    """
    if not (math.isfinite(value) and math.isfinite(error)) or error <= 0 or value <= 0:
        return f"{number(value)} ± {number(error, 2)}"
    if value < READABLE and error > 10 * value:
        return f"{power_of_ten(value)} ± {power_of_ten(error)}"
    if value < READABLE:
        power = math.floor(math.log10(value))
        digits = min(max(1 - math.floor(math.log10(error) - power), 0), 2)
        return f"({value / 10.0**power:.{digits}f} ± {error / 10.0**power:.{digits}f})e{power}"
    return f"{value:.6g} ± {power_of_ten(error)}" if error < 1e-6 else with_error(value, error)


def power_of_ten(value: float) -> str:
    """A small number to one digit.

    >>> power_of_ten(8.4e-5), power_of_ten(3.1e-25)
    ('8e-5', '3e-25')
    """
    return re.sub(r"e([+-])0", r"e\1", f"{value:.0e}")


def number(value: float, digits: int = 4) -> str:
    """A number in few characters.

    >>> number(0.123456), number(1234567.0), number(math.nan), number(3)
    ('0.1235', '1,234,567', '-', '3')
    """
    if math.isnan(value):
        return "-"
    if math.isfinite(value) and (abs(value) >= 10**digits or float(value).is_integer()):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def percent(share: float) -> str:
    """A share in percent; 100 only if the share is one.

    >>> percent(0.99), percent(1.0), percent(1 - 1e-9), percent(0.012345)
    ('99 %', '100 %', '> 99.99 %', '1.234 %')
    """
    text = f"{100 * share:.4g}"
    return "> 99.99 %" if text == "100" and share < 1 else f"{text} %"


def without_repeats(description: str) -> str:
    """The description without repeated names: of visits to the same site only the number is kept.

    >>> without_repeats("rule = 3, rule[1] = 2, rule[2] = 0, stop[2] = 1")
    'rule = 3, [1] = 2, [2] = 0, stop[2] = 1'
    """
    out, former = [], None
    for part in description.split(", "):
        name = re.match(r"[\w.@:]+(?=(\[\d+\])? )", part)
        repeated = name is not None and name[0] == former and part[name.end()] == "["
        out.append(part[name.end() :] if name is not None and repeated else part)
        former = name[0] if name is not None else None
    return ", ".join(out)


def shortened(text: str, length: int) -> str:
    """The text cut in its middle: two descriptions may differ at either end."""
    return text if len(text) <= length else f"{text[: length // 2]}…{text[len(text) - (length - length // 2 - 1) :]}"
