"""Bayesian inference on programs whose control flow depends on random values."""

import anabranch.versions  # noqa: F401 - refuses a version of jax or NumPyro before anything imports it

# isort: split
from anabranch import engines
from anabranch.checkpoint import RunProgress, read_progress
from anabranch.combine import Comparison, Draw, Draws, Odds, Posterior, PosteriorWithEvidence, compare, prior
from anabranch.conquer import describe
from anabranch.dcc import DCC
from anabranch.divide import Division, Evaluation, Executions, NamedValues, Path, PriorDraws, SiteInfo, find_paths
from anabranch.execution import Processes, Ray, Threads
from anabranch.inference import infer
from anabranch.language import deterministic, factor, observe, sample
from anabranch.limits import Tolerance
from anabranch.loading import load

__version__ = "0.1.0"

__all__ = [
    "DCC", "Comparison", "Division", "Draw", "Draws", "Evaluation", "Executions", "NamedValues", "Odds", "Path",
    "Posterior", "PosteriorWithEvidence", "PriorDraws", "Processes", "Ray", "RunProgress", "SiteInfo", "Threads",
    "Tolerance", "compare", "describe", "deterministic", "engines", "factor", "find_paths", "infer", "load", "observe",
    "prior", "read_progress", "sample",
]  # fmt: skip
