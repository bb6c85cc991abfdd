"""Of which parts does the carbon dioxide over Mauna Loa consist? A Gaussian process whose kernel is unknown.

The kernel is a sum of some of three parts: a straight line, a smooth function and a yearly cycle.
"""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
from matplotlib.figure import Figure

import anabranch as ab

DATA = pd.read_csv(Path(__file__).parent / "data" / "co2.csv", comment="#")[:36]
PARTS = ["line", "smooth", "yearly"]


def kernel(part, x, z):
    """The covariance of one part between years x and years z."""
    size = ab.sample(f"{part}_size", dist.LogNormal(0.0, 1.0))
    gap = x[:, None] - z[None, :]
    if part == "line":
        return size**2 * (1.0 + x[:, None] * z[None, :])
    length = ab.sample(f"{part}_length", dist.LogNormal(0.0, 1.0))
    if part == "smooth":
        return size**2 * jnp.exp(-0.5 * (gap / length) ** 2)
    return size**2 * jnp.exp(-2.0 * jnp.sin(jnp.pi * gap) ** 2 / length**2)


def carbon_dioxide(year, ppm):
    noise = ab.sample("noise", dist.HalfNormal(1.0))
    covariance = noise**2 * jnp.eye(len(year))
    for part in PARTS:
        if ab.sample(part, dist.Bernoulli(0.5)):
            covariance += kernel(part, year, year)
    ab.observe("ppm", dist.MultivariateNormal(0.0, covariance), ppm)


def main(file="kernels.png", *, tolerance=0.02, **limits):
    year, ppm = DATA.year.to_numpy() - 1961.0, DATA.ppm.to_numpy() - 317.0
    posterior = ab.infer(carbon_dioxide, year, ppm, seed=0, tolerance=tolerance, **limits)
    print(posterior)

    found = ", ".join(f"{part} {posterior.probability(part).get(1, 0.0):.3f}" for part in PARTS)
    print(f"\nThe probability of each part: {found}.")
    picture(posterior).savefig(file, dpi=80)
    return posterior


def picture(posterior):
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[2, 1])
    grid = np.linspace(1959.0, 1965.0, 145)
    future = posterior.predict(lambda draw, rng: continued(draw, rng, grid - 1961.0), n=200)
    low, middle, high = np.quantile(future, [0.05, 0.5, 0.95], axis=0) + 317.0
    left.plot(grid, middle)
    left.fill_between(grid, low, high, alpha=0.3)
    left.plot(DATA.year, DATA.ppm, ".", color="0.2")
    left.set(xlabel="year", ylabel="CO₂, ppm", title="prediction over all kernels, 90 %")
    posterior.plot.decisions(right)
    return figure


def continued(draw, rng, x):
    """The Gaussian process at years x, given the data and the kernel of a draw."""
    year, total = DATA.year.to_numpy() - 1961.0, 0.0
    points = np.concatenate([year, x])
    gap = points[:, None] - points[None, :]
    if draw["line"]:
        total = total + draw["line_size"] ** 2 * (1.0 + points[:, None] * points[None, :])
    if draw["smooth"]:
        total = total + draw["smooth_size"] ** 2 * np.exp(-0.5 * (gap / draw["smooth_length"]) ** 2)
    if draw["yearly"]:
        cycle = np.exp(-2.0 * np.sin(np.pi * gap) ** 2 / draw["yearly_length"] ** 2)
        total = total + draw["yearly_size"] ** 2 * cycle
    n = len(year)
    covariance = np.broadcast_to(total, gap.shape) + 1e-8 * np.eye(len(points))
    gain = np.linalg.solve(covariance[:n, :n] + draw["noise"] ** 2 * np.eye(n), covariance[:n, n:])
    mean = gain.T @ (DATA.ppm.to_numpy() - 317.0)
    return rng.multivariate_normal(mean, covariance[n:, n:] - covariance[n:, :n] @ gain, method="eigh")


if __name__ == "__main__":
    main()
