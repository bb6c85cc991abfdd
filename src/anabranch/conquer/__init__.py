"""Conquer: inference on one path at a time (paper, section 4.2)."""

from anabranch.conquer.auto import Auto
from anabranch.conquer.elimination import Elimination, describe
from anabranch.conquer.enumeration import Enumerate
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.forward import Forward
from anabranch.conquer.gaussian import Gaussian
from anabranch.conquer.hmc import HMC, NUTS
from anabranch.conquer.laplace import Laplace
from anabranch.conquer.mode_mixture import ModeMixture
from anabranch.conquer.per_path import PerPath
from anabranch.conquer.quadrature import Quadrature
from anabranch.conquer.random_walk import RandomWalk
from anabranch.conquer.smc import SMC
from anabranch.conquer.strategy import Strategy, solve
from anabranch.conquer.target import PathTarget, Target
from anabranch.conquer.variational import Variational

__all__ = [
    "HMC", "NUTS", "SMC", "Auto", "Elimination", "Enumerate", "Estimate", "Forward", "Gaussian", "Laplace",
    "ModeMixture", "PathTarget", "PerPath", "Quadrature", "RandomWalk", "Strategy", "Target", "Variational",
    "describe", "solve",
]  # fmt: skip
