"""The settings of an elimination."""

from dataclasses import dataclass

from anabranch.settings import check, share, whole

__all__ = ["Elimination"]


@dataclass(frozen=True)
class Elimination:
    """How discrete coordinates are summed out.

    Args:
        max_numbers: numbers in the tables of one point, at most; coordinates with which there were more are kept. The
            default takes 256 MiB.
        max_factor: numbers in one factor from which a coordinate is summed out, at most; more take longer.
        max_enumerated: values of a path without other coordinates up to which they are evaluated one by one instead.
        tail: share of the mass that may lie beyond the window of a coordinate that is not summed over all its values.
        max_values: values of such a window, at most; a coordinate that needs more is kept.
    """

    max_numbers: int = 2**25
    max_factor: int = 2**20
    max_enumerated: int = 10_000
    tail: float = 1e-12
    max_values: int = 10_000

    def __post_init__(self) -> None:
        check(self, max_numbers=whole(1), max_factor=whole(1), max_enumerated=whole(),
              tail=share(zero=False, one=False), max_values=whole(1))  # fmt: skip
