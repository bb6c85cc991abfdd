"""The settings of an elimination."""

import os
from dataclasses import dataclass, field

import numpy as np

from anabranch.settings import check, share, whole

__all__ = ["Elimination"]

_SHARE_OF_MEMORY, _MIN_NUMBERS, _MAX_NUMBERS = 64, 2**22, 2**27
"""The tables of a point may take one part in so many of the memory, within bounds of 32 MiB and 1 GiB."""


def _numbers_in_memory() -> int:
    """Numbers in the default share of the physical memory of this machine; 256 MiB where that is not known."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        memory = -1
    return int(np.clip(memory // (8 * _SHARE_OF_MEMORY), _MIN_NUMBERS, _MAX_NUMBERS)) if memory > 0 else 2**25


@dataclass(frozen=True)
class Elimination:
    """How discrete coordinates are summed out.

    Args:
        max_numbers: numbers in the tables of one point, at most; coordinates with which there were more are kept. The
            default takes 1/64 of the machine's memory, but at least 32 MiB and at most 1 GiB.
        max_factor: numbers in one factor from which a coordinate is summed out, at most; more take longer.
        max_group: coordinates of a group with common factors, at most, that are kept where summing them out takes long.
        max_group_numbers: numbers in the tables of such a group, where there are other coordinates, so that the sum is
            made at many points. Two change points have more: the sum over all their pairs at each point takes a hundred
            times as long as a density, and samplers draw so few coordinates well.
        max_enumerated: values of a path without other coordinates up to which they are evaluated one by one instead.
        tail: share of the mass that may lie beyond the window of a coordinate that is not summed over all its values.
        max_values: values of such a window, at most; a coordinate that needs more is kept.
    """

    max_numbers: int = field(default_factory=_numbers_in_memory)
    max_factor: int = 2**20
    max_group: int = 4
    max_group_numbers: int = 2**15
    max_enumerated: int = 10_000
    tail: float = 1e-12
    max_values: int = 10_000

    def __post_init__(self) -> None:
        check(self, max_numbers=whole(1), max_factor=whole(1), max_group=whole(), max_group_numbers=whole(1),
              max_enumerated=whole(), tail=share(zero=False, one=False), max_values=whole(1))  # fmt: skip
