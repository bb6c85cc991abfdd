"""How infectious was the influenza in a boarding school, and was there a time between infection and illness?

The epidemic is simulated in plain Python, with floats: no gradient, nothing of JAX. Two simulators compete: with and
without a latent stage (SEIR and SIR).
"""

from math import exp
from pathlib import Path

import numpy as np
import numpyro.distributions as dist
import pandas as pd
from matplotlib.figure import Figure

import anabranch as ab

DATA = pd.read_csv(Path(__file__).parent / "data" / "influenza.csv", comment="#")
BOYS, STEPS = 763, 10


def epidemic(contacts, recovery, onset, days):
    """The number of boys in bed each day, by small steps; without a latent stage if onset is None."""
    healthy, latent, ill, in_bed = BOYS - 1.0, 0.0, 1.0, []
    recover = 1.0 - exp(-recovery / STEPS)
    fall_ill = 1.0 if onset is None else 1.0 - exp(-onset / STEPS)
    for _ in range(days):
        for _ in range(STEPS):
            infected = healthy * (1.0 - exp(-contacts * ill / BOYS / STEPS))
            falling_ill = fall_ill * (latent + infected)
            healthy, latent = healthy - infected, latent + infected - falling_ill
            ill += falling_ill - recover * ill
        in_bed.append(max(ill, 0.1))
    return np.array(in_bed)


def influenza(in_bed):
    contacts = float(ab.sample("contacts", dist.LogNormal(0.7, 0.5)))
    recovery = float(ab.sample("recovery", dist.LogNormal(-0.7, 0.5)))
    onset = float(ab.sample("onset", dist.LogNormal(0.7, 0.5))) if ab.sample("latent", dist.Bernoulli(0.5)) else None
    spread = ab.sample("spread", dist.LogNormal(2.0, 1.0))
    mean = ab.deterministic("mean", epidemic(contacts, recovery, onset, len(in_bed)))
    ab.deterministic("R0", contacts / recovery)
    ab.observe("in_bed", dist.NegativeBinomial2(mean, spread), in_bed)


def main(file="epidemic.png", *, budget=10_000, tolerance=0.02, **limits):
    posterior = ab.infer(influenza, DATA.in_bed.to_numpy(), seed=0, budget=budget, tolerance=tolerance, **limits)
    print(posterior)

    latent = posterior.probability("latent")
    low, high, *_ = posterior.interval("R0", 0.9)
    print(
        f"\nA latent stage has probability {latent[1]:.3f} ± {latent.errors[1]:.3f}. A boy infected between {low:.1f} "
        f"and {high:.1f} others at first (90 %)."
    )
    picture(posterior).savefig(file, dpi=80)
    return posterior


def picture(posterior):
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    low, middle, high = np.quantile(posterior.draws(300)["mean"], [0.05, 0.5, 0.95], axis=0)
    left.plot(DATA.day, middle)
    left.fill_between(DATA.day, low, high, alpha=0.3)
    left.plot(DATA.day, DATA.in_bed, "o", color="0.2")
    left.set(xlabel="day", ylabel="boys in bed", title="mean: median and 90 % interval")
    posterior.plot.marginal("R0", right, n=1000)
    return figure


if __name__ == "__main__":
    main()
