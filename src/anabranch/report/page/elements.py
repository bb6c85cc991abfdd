"""Elements of the page: text is escaped here, and nowhere else."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Cell", "Column", "bar", "code", "facts", "items", "paragraph", "section", "slug", "table", "text"]


@dataclass(frozen=True)
class Column:
    """The header of a column; numbers are aligned to the right, and sorted with the largest first."""

    title: str
    is_number: bool = True


@dataclass(frozen=True)
class Cell:
    """The words of a cell, the number by which its column is sorted, and the length of its bar, if it has one."""

    words: str
    value: float = math.nan
    share: float | None = None


def text(words: str) -> str:
    """The words, escaped."""
    return html.escape(words)


def slug(title: str) -> str:
    """The identifier of a section."""
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def section(title: str, *parts: str) -> str:
    """A section with a heading; empty without parts."""
    inside = "\n".join(filter(None, parts))
    name = slug(title)
    heading = f'<h2 id="{name}">{text(title)}</h2>'
    return f'<section aria-labelledby="{name}">{heading}\n{inside}</section>' if inside else ""


def paragraph(words: str) -> str:
    """A paragraph; empty without words."""
    return f"<p>{text(words)}</p>" if words else ""


def items(sentences: Iterable[str]) -> str:
    """A list; empty without sentences."""
    inside = "".join(f"<li>{text(each)}</li>" for each in sentences)
    return f"<ul>{inside}</ul>" if inside else ""


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of terms and what is known of them."""
    return f"<dl>{''.join(f'<div><dt>{text(key)}</dt><dd>{text(value)}</dd></div>' for key, value in pairs)}</dl>"


def code(words: str, label: str) -> str:
    """Text as it was typed, in a box that the keyboard can scroll."""
    return f'<pre tabindex="0" role="region" aria-label="{text(label)}"><code>{text(words)}</code></pre>'


def bar(share: float) -> str:
    """A bar of a length from 0 to 1; the number stands beside it, so that nothing is lost without it."""
    width = min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0
    return f'<span class="bar" aria-hidden="true"><span style="width:{100 * width:.3g}%"></span></span>'


def table(caption: str, columns: Sequence[Column], rows: Iterable[Sequence[Cell]], kind: str = "sortable") -> str:
    """A table in a box of its own, which scrolls; the headers of a sortable one, a kind of table, are buttons."""
    header = "".join(_header(column, "sortable" in kind) for column in columns)
    body = "".join(f"<tr>{''.join(map(_cell, columns, row, range(len(columns))))}</tr>\n" for row in rows)
    return (
        f'<div class="scrolls" tabindex="0" role="region" aria-label="{text(caption)}">'
        f'<table class="{kind}"><caption>{text(caption)}</caption><thead><tr>{header}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _header(column: Column, is_sortable: bool) -> str:
    kind = ' class="number"' if column.is_number else ""
    title = text(column.title)
    inside = f'<button type="button">{title}<span class="arrow" aria-hidden="true"></span></button>'
    return f'<th scope="col"{kind}>{inside if is_sortable else title}</th>'


def _cell(column: Column, cell: Cell, place: int) -> str:
    value = f' data-value="{cell.value!r}"' if column.is_number and math.isfinite(cell.value) else ""
    inside = text(cell.words)
    if cell.share is not None:
        inside = f'<span class="measured">{bar(cell.share)}{inside}</span>'
    if place == 0:
        return f'<th scope="row"{value}>{inside}</th>'
    return f'<td class="number"{value}>{inside}</td>' if column.is_number else f"<td>{inside}</td>"
