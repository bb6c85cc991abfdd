"""Discrete variables summed out exactly: the order, the steps, the tables, the density without them, and the text."""

from anabranch.conquer.elimination.blocks import Sums
from anabranch.conquer.elimination.describe import describe
from anabranch.conquer.elimination.eliminate import eliminate, summed_out
from anabranch.conquer.elimination.recheck import rechecked
from anabranch.conquer.elimination.settings import Elimination
from anabranch.conquer.elimination.target import Eliminated

__all__ = ["Eliminated", "Elimination", "Sums", "describe", "eliminate", "rechecked", "summed_out"]
