"""Conquer: inference on one path at a time (paper, section 4.2)."""

from anabranch.conquer.estimate import Estimate
from anabranch.conquer.mode_mixture import ModeMixture
from anabranch.conquer.strategy import Strategy
from anabranch.conquer.target import PathTarget, Target

__all__ = ["Estimate", "ModeMixture", "PathTarget", "Strategy", "Target"]
