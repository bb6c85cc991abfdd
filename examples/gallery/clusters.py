"""How many kinds of waiting time has Old Faithful?

A mixture with an unknown number of components, of unknown shares and means; their scale is the same, and unknown.
"""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import norm

import anabranch as ab

DATA = pd.read_csv(Path(__file__).parent / "data" / "faithful.csv", comment="#")


def eruptions(waiting):
    K = ab.sample("K", dist.DiscreteUniform(1, 3))
    share = ab.sample("share", dist.Dirichlet(jnp.ones(K)))
    mean = ab.sample("mean", dist.Normal(70.0, 20.0).expand([K]).to_event(1))
    sd = ab.sample("sd", dist.LogNormal(1.8, 0.5))
    ab.observe("waiting", dist.MixtureSameFamily(dist.Categorical(share), dist.Normal(mean, sd)), waiting)


def main(file="clusters.png", *, tolerance=0.02, **limits):
    posterior = ab.infer(eruptions, DATA.waiting.to_numpy(float), seed=0, tolerance=tolerance, **limits)
    print(posterior)

    K = posterior.probability("K")
    best = max(K, key=K.get)
    print(f"\nThere are {best} kinds with probability {K[best]:.2f} ± {K.errors[best]:.2f}.")
    picture(posterior).savefig(file, dpi=80)
    return posterior


def picture(posterior):
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[2, 1])
    grid = np.linspace(35, 105, 141)

    def density(draw):
        return (draw["share"] * norm(draw["mean"], draw["sd"]).pdf(grid[:, None])).sum(axis=1)

    low, middle, high = np.quantile(posterior.predict(density, n=300), [0.05, 0.5, 0.95], axis=0)
    left.hist(DATA.waiting, bins=30, density=True, color="0.8")
    left.plot(grid, middle)
    left.fill_between(grid, low, high, alpha=0.3)
    left.set(xlabel="minutes until the next eruption", ylabel="density")
    K = posterior.probability("K")
    right.bar(list(K), list(K.values()), yerr=list(K.errors.values()))
    right.set(xlabel="components", ylabel="probability", xticks=[1, 2, 3])
    return figure


if __name__ == "__main__":
    main()
