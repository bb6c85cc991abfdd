"""Discrete variables summed out exactly: the order, the steps, the tables, and the density without them."""

from anabranch.conquer.elimination.eliminate import eliminate
from anabranch.conquer.elimination.recheck import rechecked
from anabranch.conquer.elimination.settings import Elimination
from anabranch.conquer.elimination.target import Eliminated

__all__ = ["Eliminated", "Elimination", "eliminate", "rechecked"]
