"""The exact answers of the paper's experiments, by quadrature: what `anabranch.reproduce.truth` stores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import anabranch.reproduce.truth

DIGITS = 12
"""Significant digits of the stored numbers."""


def write(name: str, answers: Mapping[str, Any]) -> None:
    """Store the answers of one experiment in the package."""
    file = Path(anabranch.reproduce.truth.__file__).with_name(f"{name}.json")
    file.write_text(json.dumps(rounded(answers), indent=1) + "\n", encoding="utf-8")


def rounding(value: float) -> float:
    """The largest change of a number by rounding it to the stored digits."""
    return abs(value) * 10.0 ** (1 - DIGITS)


def rounded(value: Any) -> Any:
    """Plain numbers, lists and dictionaries, rounded to the stored digits."""
    if isinstance(value, Mapping):
        return {str(key): rounded(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return [rounded(item) for item in value]
    if isinstance(value, float):  # NumPy's are floats too
        return float(f"{value:.{DIGITS}g}")
    return value
