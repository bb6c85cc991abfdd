"""Labels of paths: only the decisions in which the paths that are shown differ."""

from collections import Counter
from collections.abc import Sequence

from anabranch.divide import Path
from anabranch.report.table import without_repeats

__all__ = ["labels_of"]


def labels_of(paths: Sequence[Path]) -> tuple[list[str], str]:
    """A label for each path, and the decisions that all of them share."""
    decisions = [Counter(_decisions(path)) for path in paths]
    first = decisions[0].items() if len(paths) > 1 else ()
    common = {text: n for text, n in first if all(each[text] == n for each in decisions)}
    labels = [
        _in_words({text: n for text, n in each.items() if text not in common}) or "otherwise" for each in decisions
    ]
    return labels, _in_words(common)


def _decisions(path: Path) -> Sequence[str]:
    """The decisions of a path with a single sequence of them; else its description as one."""
    first, *others = path.decisions
    return [path.description] if others or not first else first


def _in_words(times: dict[str, int]) -> str:
    return without_repeats(", ".join(f"{text} ×{n}" if n > 1 else text for text, n in times.items()))
