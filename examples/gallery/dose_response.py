"""Which curve describes the mortality of beetles, and which dose kills half of them?

Three curves compete, each with a level and a slope: logit, probit and complementary log-log (Bliss, 1935).
"""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
from jax.nn import sigmoid
from jax.scipy.special import ndtr
from matplotlib.figure import Figure

import anabranch as ab

DATA = pd.read_csv(Path(__file__).parent / "data" / "beetles.csv", comment="#")
CURVES = ["logit", "probit", "cloglog"]


def mortality(log_dose, beetles, killed):
    curve = CURVES[ab.sample("curve", dist.DiscreteUniform(0, 2))]
    level = ab.sample("level", dist.Normal(0.0, 2.0))
    slope = ab.sample("slope", dist.Normal(0.0, 50.0))
    z = level + slope * (log_dose - 1.8)
    p = sigmoid(z) if curve == "logit" else ndtr(z) if curve == "probit" else -jnp.expm1(-jnp.exp(z))
    ab.deterministic("p", p)
    half = {"logit": 0.0, "probit": 0.0, "cloglog": np.log(np.log(2.0))}[curve]
    ab.deterministic("half", 1.8 + (half - level) / slope)
    ab.observe("killed", dist.Binomial(beetles, p), killed)


def main(file="dose_response.png", *, tolerance=0.02, **limits):
    posterior = ab.infer(mortality, *DATA.to_numpy().T, seed=0, tolerance=tolerance, **limits)
    print(posterior)

    curves = posterior.probability("curve")
    best = max(curves, key=curves.get)
    low, high, *_ = posterior.interval("half", 0.9)
    print(
        f"\nThe {CURVES[best]} curve has probability {curves[best]:.3f} ± {curves.errors[best]:.3f}. Half of the "
        f"beetles die of a log dose between {low:.3f} and {high:.3f} (90 %), averaged over the curves."
    )
    picture(posterior).savefig(file, dpi=80)
    return posterior


def picture(posterior):
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[2, 1])
    grid = np.linspace(1.67, 1.9, 60)
    low, middle, high = np.quantile(posterior.predictive(grid, 1, n=500)["p"], [0.05, 0.5, 0.95], axis=0)
    left.plot(DATA.log_dose, DATA.killed / DATA.beetles, "o", color="0.4")
    left.plot(grid, middle)
    left.fill_between(grid, low, high, alpha=0.3)
    left.set(xlabel="log₁₀ dose", ylabel="killed", title="average over the curves, 90 % interval")
    curves = posterior.probability("curve")
    right.bar([CURVES[k] for k in curves], list(curves.values()))
    right.set(ylabel="probability")
    return figure


if __name__ == "__main__":
    main()
