"""Allocate: which paths get the next share of the budget (paper, section 6.3 and appendices E and F)."""

from anabranch.allocate.active import ActiveSet
from anabranch.allocate.allocator import Allocator
from anabranch.allocate.halving import SuccessiveHalving
from anabranch.allocate.path_summary import PathSummary
from anabranch.allocate.path_table import PathRecord, PathTable
from anabranch.allocate.uniform import Uniform
from anabranch.allocate.utility import UCB

__all__ = ["UCB", "ActiveSet", "Allocator", "PathRecord", "PathSummary", "PathTable", "SuccessiveHalving", "Uniform"]
