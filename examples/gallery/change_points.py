"""Did the flow of the Nile change between 1871 and 1970: how often, and when?

The number of changes is unknown, and with it the number of levels. A dam was begun at Aswan in 1898.
"""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
from matplotlib.figure import Figure

import anabranch as ab

DATA = pd.read_csv(Path(__file__).parent / "data" / "nile.csv", comment="#")
PRIOR = np.array([0.4, 0.3, 0.2, 0.1])


def nile(year, flow):
    changes = ab.sample("changes", dist.Categorical(PRIOR))
    when = jnp.sort(jnp.array([ab.sample(f"when{k}", dist.Uniform(1871, 1970)) for k in range(changes)]))
    level = jnp.array([ab.sample(f"level{k}", dist.Normal(900, 200)) for k in range(changes + 1)])
    noise = ab.sample("noise", dist.Gamma(4.0, 0.03))
    mean = ab.deterministic("mean", level[jnp.searchsorted(when, year)])
    ab.observe("flow", dist.Normal(mean, noise), flow)


def main(file="change_points.png", *, tolerance=0.02, **limits):
    year, flow = DATA.year.to_numpy(), DATA.flow.to_numpy(float)
    posterior = ab.infer(nile, year, flow, seed=0, tolerance=tolerance, **limits)
    print(posterior)

    changes = posterior.probability("changes")
    when, _ = posterior.quantile(lambda draw: draw["when0"] if draw["changes"] == 1 else None, [0.05, 0.5, 0.95])
    print(
        f"\nThe flow changed at least once with probability {1 - changes.get(0, 0.0):.6f}; exactly once with "
        f"probability {changes[1]:.2f}, in {when[1]:.0f} then (90 % interval {when[0]:.0f} to {when[2]:.0f})."
    )
    picture(posterior, year, flow).savefig(file, dpi=80)
    return posterior


def picture(posterior, year, flow):
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[3, 1])
    mean = posterior.draws(500)["mean"]
    left.plot(year, flow, ".", color="0.4")
    left.plot(year, mean.mean(axis=0))
    left.fill_between(year, *np.quantile(mean, [0.05, 0.95], axis=0), alpha=0.3, step="mid")
    left.set(xlabel="year", ylabel="flow, 10⁸ m³", title="level: mean and 90 % interval")
    changes = posterior.probability("changes")
    right.bar(list(changes), list(changes.values()), yerr=list(changes.errors.values()))
    right.set(xlabel="changes", ylabel="probability", xticks=[0, 1, 2, 3])
    return figure


if __name__ == "__main__":
    main()
