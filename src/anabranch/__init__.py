"""Bayesian inference on programs whose control flow depends on random values."""

from anabranch.divide import Division, Evaluation, Executions, Outcome, Path, PriorDraws, SiteInfo, find_paths
from anabranch.language import deterministic, factor, observe, sample

__version__ = "0.1.0"

__all__ = [
    "Division",
    "Evaluation",
    "Executions",
    "Outcome",
    "Path",
    "PriorDraws",
    "SiteInfo",
    "deterministic",
    "factor",
    "find_paths",
    "observe",
    "sample",
]
