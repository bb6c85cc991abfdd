"""Values by name, over a batch of points."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["NamedValues"]


@dataclass(frozen=True)
class NamedValues:
    """Values by name at the points numbered `index`, all of which take the same decision sequence.

    Attributes:
        index: the numbers of the points.
        values: the sites by name, or what was asked for of each observation; one row for each point.
        deterministics: the deterministics by name.
        result: what the program returned.
        varies: in the form of (deterministics, result), which of their arrays have one row for each point, and which
            are the same for all.
    """

    index: np.ndarray
    values: dict[str, np.ndarray]
    deterministics: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    varies: tuple[dict[str, Any], Any] = field(default_factory=lambda: ({}, None))
