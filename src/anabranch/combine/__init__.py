"""Combine: one posterior from the estimates of all paths."""

from anabranch.combine.draws import Draw, Draws
from anabranch.combine.posterior import Posterior
from anabranch.combine.saving import load
from anabranch.combine.solution import Run, Solution

__all__ = ["Draw", "Draws", "Posterior", "Run", "Solution", "load"]
