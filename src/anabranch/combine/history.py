"""The history of a run: the visits of paths, and the evidence after each."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["History"]


@dataclass
class History:
    """One row for each visit of a path, or for each time that the evidence was recorded; see `Posterior.history`."""

    evaluations: list[int] = field(default_factory=list)
    log_evidence: list[float] = field(default_factory=list)
    path: list[str | None] = field(default_factory=list)
    chain: list[int | None] = field(default_factory=list)
    spent: list[int] = field(default_factory=list)
    path_log_evidence: list[float] = field(default_factory=list)

    def add(
        self,
        evaluations: int,
        log_evidence: float | None = None,
        path: str | None = None,
        chain: int | None = None,
        spent: int = 0,
        path_log_evidence: float = np.nan,
    ) -> None:
        self.evaluations.append(int(evaluations))
        self.log_evidence.append(np.nan if log_evidence is None else float(log_evidence))
        self.path.append(path)
        self.chain.append(None if chain is None else int(chain))
        self.spent.append(int(spent))
        self.path_log_evidence.append(float(path_log_evidence))

    def copy(self) -> History:
        """The same rows, which do not grow."""
        return History(*(list(getattr(self, each.name)) for each in fields(self)))

    def __len__(self) -> int:
        return len(self.evaluations)

    def frame(self) -> pd.DataFrame:
        import pandas as pd

        columns: dict[str, Any] = asdict(self)
        for name in ("path", "chain"):  # as objects: None stays None
            columns[name] = pd.Series(columns[name], dtype=object)
        return pd.DataFrame(columns)
