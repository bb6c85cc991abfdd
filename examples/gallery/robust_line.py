"""Is there a line through the stars of the cluster CYG OB1, once the giants are set aside?

Least squares gives a slope of -0.4; the robust fit of Rousseeuw and Leroy (1987), +3.9: four giants pull the line. Here
a star is a giant or not, which is not known of any of them; and whether there are giants at all is part of the
question.
"""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
from matplotlib.figure import Figure

import anabranch as ab

DATA = pd.read_csv(Path(__file__).parent / "data" / "stars.csv", comment="#")


def stars(temperature, light):
    level = ab.sample("level", dist.Normal(5.0, 2.0))
    slope = ab.sample("slope", dist.Normal(0.0, 5.0))
    noise = ab.sample("noise", dist.HalfNormal(1.0))
    mean, scale = level + slope * (temperature - 4.4), noise
    if ab.sample("giants", dist.Bernoulli(0.5)):
        share = ab.sample("share", dist.Beta(1.0, 9.0))
        giant = ab.sample("giant", dist.Bernoulli(share).expand([len(light)]).to_event(1))
        mean = jnp.where(giant, ab.sample("giant_level", dist.Normal(5.0, 2.0)), mean)
        scale = jnp.where(giant, ab.sample("giant_noise", dist.HalfNormal(1.0)), noise)
    ab.observe("light", dist.Normal(mean, scale), light)


def main(file="robust_line.png", *, tolerance=0.02, **limits):
    posterior = ab.infer(
        stars, DATA.log_temperature.to_numpy(), DATA.log_light.to_numpy(), seed=0, tolerance=tolerance, **limits
    )
    print(posterior)

    giants = posterior.probability("giants")
    slope, error = posterior.expectation(lambda draw: draw["slope"] if draw["giants"] else None)
    giant = giant_probability(posterior)
    print(
        f"\nThere are giants with probability {giants[1]:.3f}, and the slope is then {slope:.2f} ± {error:.2f}. Stars "
        f"that are more likely giants than not: {', '.join(str(i + 1) for i in np.flatnonzero(giant > 0.5))}."
    )
    picture(posterior, giant).savefig(file, dpi=80)
    return posterior


def giant_probability(posterior):
    """Of each star, that it is a giant: whole executions count, also those without giants."""
    return np.array([posterior.probability(f"giant[{i}]").get(1, 0.0) for i in range(len(DATA))])


def picture(posterior, giant):
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    shown = axes.scatter(DATA.log_temperature, DATA.log_light, c=giant, cmap="coolwarm", vmin=0, vmax=1, zorder=3)
    figure.colorbar(shown, label="probability of a giant")
    grid = np.linspace(3.4, 4.7, 2)
    lines = posterior.predict(lambda draw: draw["level"] + draw["slope"] * (grid - 4.4), n=100)
    axes.plot(grid, lines.T, color="0.3", alpha=0.1, lw=1)
    axes.set(xlabel="log temperature", ylabel="log light", xlim=(4.75, 3.35), ylim=(3.7, 6.5))
    return figure


if __name__ == "__main__":
    main()
