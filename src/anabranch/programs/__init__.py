"""The programs of the paper, with data drawn at a fixed seed."""

from anabranch.programs.branching import branching
from anabranch.programs.induction import function_induction, function_induction_data, function_induction_test_data
from anabranch.programs.mixture import misspecified_mixture, mixture, mixture_data, uncertain_mixture_data
from anabranch.programs.planar import planar_mixture, planar_mixture_data

__all__ = [
    "branching", "function_induction", "function_induction_data", "function_induction_test_data",
    "misspecified_mixture", "mixture", "mixture_data", "planar_mixture", "planar_mixture_data",
    "uncertain_mixture_data",
]  # fmt: skip
