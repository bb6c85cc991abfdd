"""Discrete variables summed out exactly: the order, the steps, the tables, and the density without them."""

from anabranch.conquer.elimination.target import Eliminated, Elimination, eliminate

__all__ = ["Eliminated", "Elimination", "eliminate"]
