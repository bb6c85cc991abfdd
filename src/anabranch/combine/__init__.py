"""Combine: one posterior from the estimates of all paths."""

from anabranch.combine.comparison import Comparison, compare
from anabranch.combine.draws import Draw, Draws
from anabranch.combine.odds import Odds
from anabranch.combine.posterior import Posterior
from anabranch.combine.prediction import prior
from anabranch.combine.saving import check_free
from anabranch.combine.solution import Run, Solution
from anabranch.combine.with_evidence import PosteriorWithEvidence, posterior_of

__all__ = [
    "Comparison", "Draw", "Draws", "Odds", "Posterior", "PosteriorWithEvidence", "Run", "Solution", "check_free",
    "compare", "posterior_of", "prior",
]  # fmt: skip
