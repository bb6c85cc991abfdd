"""Tables as text and HTML; numbers and the descriptions of paths as text."""

import html
import math
import re
from collections.abc import Sequence

__all__ = ["html_table", "number", "percent", "shortened", "text_table", "with_error", "without_repeats"]


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
