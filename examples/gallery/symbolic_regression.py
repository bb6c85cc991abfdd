"""Which law relates the distance of a planet to its period? Kepler's data, and a grammar of formulas.

    E → x | c | √E | E + E | E · E

The grammar is a recursive function; the formula that it draws is what the program returns.
"""

from collections import Counter
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
from matplotlib.figure import Figure

import anabranch as ab

DATA = pd.read_csv(Path(__file__).parent / "data" / "planets.csv", comment="#")
RULES = np.array([0.4, 0.2, 0.2, 0.05, 0.15])


def expression(x, name, depth):
    """A random formula: its value at x, and how it is written."""
    rule = ab.sample(name, dist.Categorical(RULES if depth else RULES[:2] / RULES[:2].sum()))
    if rule == 0:
        return x, "x"
    if rule == 1:
        return ab.sample(f"{name}_c", dist.LogNormal(0.0, 2.0)), "c"
    a, left = expression(x, name + "l", depth - 1)
    if rule == 2:
        return jnp.sqrt(a), f"sqrt({left})"
    b, right = expression(x, name + "r", depth - 1)
    return (a + b, f"({left} + {right})") if rule == 3 else (a * b, f"{left}·{right}")


def law(distance, years):
    value, formula = expression(distance, "E", depth=2)
    noise = ab.sample("noise", dist.HalfNormal(0.1))
    ab.observe("years", dist.LogNormal(jnp.log(value), noise), years)
    return formula


def main(file="symbolic_regression.png", *, tolerance=0.02, **limits):
    posterior = ab.infer(
        law, DATA.distance.to_numpy(), DATA.days.to_numpy() / 365.25, seed=0, tolerance=tolerance, **limits
    )
    print(posterior)

    formulas = Counter(draw.result for draw in posterior.draws(2000))
    print("\nFormulas, by their share of 2,000 draws:")
    for formula, count in formulas.most_common(6):
        print(f"  {count / 2000:.3f}  {formula}")
    kepler, error = posterior.expectation(lambda draw: draw.result in ("x·sqrt(x)", "sqrt(x)·x"))
    print(f"\nThe period is x·sqrt(x), Kepler's third law, with probability {kepler:.3f} ± {error:.3f}.")
    picture(formulas).savefig(file, dpi=80)
    return posterior


def picture(formulas):
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    grid = np.geomspace(0.3, 12, 50)
    left.loglog(grid, grid**1.5, label="x·sqrt(x)")
    left.loglog(DATA.distance, DATA.days / 365.25, "o", color="0.2")
    left.set(xlabel="distance, Earth = 1", ylabel="period, years")
    left.legend()
    names, counts = zip(*formulas.most_common(6), strict=True)
    right.barh(names, np.array(counts) / 2000)
    right.invert_yaxis()
    right.set(xlabel="share of the draws")
    return figure


if __name__ == "__main__":
    main()
