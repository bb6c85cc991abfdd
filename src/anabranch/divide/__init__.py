"""Divide: from a program to its straight-line programs."""

from anabranch.divide.division import Division, Executions, divide, find_paths
from anabranch.divide.evaluation import Evaluation
from anabranch.divide.path import Outcome, Path, SiteInfo
from anabranch.divide.prior import PriorDraws

__all__ = ["Division", "Evaluation", "Executions", "Outcome", "Path", "PriorDraws", "SiteInfo", "divide", "find_paths"]
