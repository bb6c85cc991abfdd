"""The samplers that the paper compares with, each on whole programs (paper, appendix A and section 7)."""

from anabranch.engines.bbvi import BBVI
from anabranch.engines.importance import ImportanceSampling
from anabranch.engines.involutive import InvolutiveMH, Move
from anabranch.engines.metropolis import LightweightMH, RandomWalkMH
from anabranch.engines.particle_mcmc import IPMCMC, PIMH, PMMH, ParticleGibbs
from anabranch.engines.rejection import Rejection
from anabranch.engines.smc import SMC
from anabranch.engines.smc2 import SMC2
from anabranch.engines.svi import SVI

__all__ = [
    "BBVI", "IPMCMC", "PIMH", "PMMH", "SMC", "SMC2", "SVI", "ImportanceSampling", "InvolutiveMH", "LightweightMH",
    "Move", "ParticleGibbs", "RandomWalkMH", "Rejection",
]  # fmt: skip
