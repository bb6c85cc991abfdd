"""Divide: from a program to its straight-line programs."""

from anabranch.divide.division import Division, Executions, find_paths
from anabranch.divide.evaluation import Evaluation
from anabranch.divide.path import Outcome, Path, SiteInfo
from anabranch.divide.prior import PriorDraws

__all__ = ["Division", "Evaluation", "Executions", "Outcome", "Path", "PriorDraws", "SiteInfo", "find_paths"]
