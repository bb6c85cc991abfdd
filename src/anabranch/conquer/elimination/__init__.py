"""Discrete variables summed out exactly: the order, the steps, the tables, the density without them, and the text."""

from anabranch.conquer.elimination.describe import describe
from anabranch.conquer.elimination.target import Eliminated, Elimination, eliminate

__all__ = ["Eliminated", "Elimination", "describe", "eliminate"]
