"""Allocate: which paths get the next share of the budget (paper, section 6.3 and appendices E and F)."""

from anabranch.allocate.active import ActiveSet
from anabranch.allocate.allocator import Allocator
from anabranch.allocate.arm import Arm
from anabranch.allocate.halving import SuccessiveHalving
from anabranch.allocate.ledger import Entry, Ledger
from anabranch.allocate.uniform import Uniform
from anabranch.allocate.utility import UCB

__all__ = ["UCB", "ActiveSet", "Allocator", "Arm", "Entry", "Ledger", "SuccessiveHalving", "Uniform"]
