"""Formulas of the site as MathML, which browsers draw by themselves: no script is loaded from elsewhere."""

import html
import re

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(div|span) class="arithmatex">\\[\[(](.*?)\\[\])]</\1>', flags=re.DOTALL)


def on_page_content(content: str, **_: object) -> str:
    """Called by MkDocs for each page: replaces TeX by MathML."""
    return FORMULA.sub(_formula, content)


def _formula(match: re.Match[str]) -> str:
    display = "block" if match[1] == "div" else "inline"
    return convert(html.unescape(match[2]), display=display)
