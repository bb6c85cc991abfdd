"""Allocate: which paths get the next evaluations (paper, section 6.3 and appendices E and F)."""

from anabranch.allocate.active import ActiveSet
from anabranch.allocate.allocator import Allocator
from anabranch.allocate.doubted_paths import DoubtedPaths
from anabranch.allocate.first_visits import FirstVisits
from anabranch.allocate.halving import SuccessiveHalving
from anabranch.allocate.path_summary import PathSummary
from anabranch.allocate.path_table import PathRecord, PathTable
from anabranch.allocate.refinement import Refinement
from anabranch.allocate.schedule import AllocationState, ScheduleRule, Thresholds, Visit
from anabranch.allocate.uniform import Uniform
from anabranch.allocate.utility import UCB

SCHEDULE: tuple[ScheduleRule, ...] = (FirstVisits(), DoubtedPaths(), Refinement())
"""The default schedule."""

__all__ = [
    "SCHEDULE", "UCB", "ActiveSet", "AllocationState", "Allocator", "DoubtedPaths", "FirstVisits", "PathRecord",
    "PathSummary", "PathTable", "Refinement", "ScheduleRule", "SuccessiveHalving", "Thresholds", "Uniform", "Visit",
]  # fmt: skip
