"""How many regimes has the world's seismicity? Counts of great earthquakes, and a hidden Markov model.

The number of states is unknown; their rates and transitions, too. The states are written out, one per year, and
are summed out by the library.
"""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
from matplotlib.figure import Figure

import anabranch as ab

DATA = pd.read_csv(Path(__file__).parent / "data" / "earthquakes.csv", comment="#")


def earthquakes(count):
    K = ab.sample("K", dist.DiscreteUniform(1, 3))
    rate = jnp.array([ab.sample(f"rate{k}", dist.Gamma(4.0, 0.2)) for k in range(K)])
    row = jnp.array([ab.sample(f"row{k}", dist.Dirichlet(jnp.ones(K))) for k in range(K)])
    state = ab.sample("state0", dist.Categorical(jnp.ones(K) / K))
    for t in range(len(count)):
        if t > 0:
            state = ab.sample(f"state{t}", dist.Categorical(row[state]))
        ab.observe(f"count{t}", dist.Poisson(rate[state]), count[t])


def main(file="hidden_markov.png", *, tolerance=0.02, **limits):
    posterior = ab.infer(earthquakes, DATA["count"].to_numpy(), seed=0, tolerance=tolerance, **limits)
    print(posterior)

    K = posterior.probability("K")
    best = max(K, key=K.get)
    print(f"\nThere are {best} regimes with probability {K[best]:.2f} ± {K.errors[best]:.2f}.")
    picture(posterior).savefig(file, dpi=80)
    return posterior


def picture(posterior):
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[3, 1])

    def rates(draw):
        return [draw[f"rate{int(draw[f'state{t}'])}"] for t in range(len(DATA))]

    low, middle, high = np.quantile(posterior.predict(rates, n=300), [0.05, 0.5, 0.95], axis=0)
    left.plot(DATA.year, DATA["count"], ".", color="0.4")
    left.plot(DATA.year, middle)
    left.fill_between(DATA.year, low, high, alpha=0.3)
    left.set(xlabel="year", ylabel="earthquakes", title="rate: median and 90 % interval")
    K = posterior.probability("K")
    right.bar(list(K), list(K.values()), yerr=list(K.errors.values()))
    right.set(xlabel="states", ylabel="probability", xticks=[1, 2, 3])
    return figure


if __name__ == "__main__":
    main()
