"""Of which degree is the polynomial that Galileo's ball follows?

A ball is released at some height above a table, and flies off its edge: how far? Seven measurements of 1608.
"""

from pathlib import Path

import numpy as np
import numpyro.distributions as dist
import pandas as pd
from matplotlib.figure import Figure

import anabranch as ab

DATA = pd.read_csv(Path(__file__).parent / "data" / "galileo.csv", comment="#", dtype=float)


def trajectory(height, distance):
    degree = ab.sample("degree", dist.DiscreteUniform(0, 4))
    x = (height - 500.0) / 500.0
    curve = ab.sample("b0", dist.Normal(400.0, 200.0))
    for k in range(1, degree + 1):
        curve += ab.sample(f"b{k}", dist.Normal(0.0, 200.0)) * x**k
    noise = ab.sample("noise", dist.HalfNormal(20.0))
    ab.observe("distance", dist.Normal(curve, noise), distance)


def main(file="polynomial.png", *, tolerance=0.02, **limits):
    posterior = ab.infer(
        trajectory, DATA.height.to_numpy(), DATA.distance.to_numpy(), seed=0, tolerance=tolerance, **limits
    )
    print(posterior)

    degrees = posterior.probability("degree")
    best = max(degrees, key=degrees.get)
    print(f"\nThe degree is {best} with probability {degrees[best]:.4f} ± {degrees.errors[best]:.4f}.")
    picture(posterior).savefig(file, dpi=80)
    return posterior


def picture(posterior):
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[2, 1])
    grid = np.linspace(0.0, 1200.0, 61)
    low, middle, high = np.quantile(posterior.predictive(grid)["distance"], [0.05, 0.5, 0.95], axis=0)
    left.plot(grid, middle)
    left.fill_between(grid, low, high, alpha=0.3)
    left.plot(DATA.height, DATA.distance, "o", color="0.2")
    left.set(xlabel="height, punti", ylabel="distance, punti", title="prediction over all degrees, 90 %")
    posterior.plot.weights(right)
    return figure


if __name__ == "__main__":
    main()
