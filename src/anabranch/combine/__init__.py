"""Combine: one posterior from the estimates of all paths."""

from anabranch.combine.comparison import Comparison, compare
from anabranch.combine.draws import Draw, Draws
from anabranch.combine.odds import Odds
from anabranch.combine.posterior import Posterior
from anabranch.combine.prediction import prior
from anabranch.combine.saving import load
from anabranch.combine.solution import Run, Solution

__all__ = ["Comparison", "Draw", "Draws", "Odds", "Posterior", "Run", "Solution", "compare", "load", "prior"]
