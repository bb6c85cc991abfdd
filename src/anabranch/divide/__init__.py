"""Divide: from a program to its straight-line programs."""

from anabranch.divide.division import Division, divide, find_paths
from anabranch.divide.evaluation import Evaluation
from anabranch.divide.executions import Executions
from anabranch.divide.named_values import NamedValues
from anabranch.divide.path import Path, SiteInfo
from anabranch.divide.prior import PriorDraws

__all__ = [
    "Division",
    "Evaluation",
    "Executions",
    "NamedValues",
    "Path",
    "PriorDraws",
    "SiteInfo",
    "divide",
    "find_paths",
]
