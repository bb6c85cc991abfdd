"""Which compounds make cement hot? Hald's data: four columns, two pairs of which are nearly collinear.

Each column is in the regression or not: an `if` of Python, and sixteen regressions.
"""

from pathlib import Path

import numpy as np
import numpyro.distributions as dist
import pandas as pd
from matplotlib.figure import Figure

import anabranch as ab

DATA = pd.read_csv(Path(__file__).parent / "data" / "cement.csv", comment="#")


def hardening(X, heat):
    mean = np.zeros(len(heat))
    for column in X.columns:
        if ab.sample(column, dist.Bernoulli(0.5)):
            mean = mean + X[column].to_numpy() * ab.sample(f"b_{column}", dist.Normal(0.0, 1.0))
    noise = ab.sample("noise", dist.HalfNormal(1.0))
    ab.observe("heat", dist.Normal(mean, noise), heat)


def standardised():
    table = (DATA - DATA.mean()) / DATA.std()
    return table.drop(columns="heat"), table.heat.to_numpy()


def main(file="variable_selection.png", *, tolerance=0.02, **limits):
    X, heat = standardised()
    posterior = ab.infer(hardening, X, heat, seed=0, tolerance=tolerance, **limits)
    print(posterior)

    found = {column: posterior.probability(column) for column in X.columns}
    words = [f"{column} {each.get(1, 0.0):.4f} ± {each.errors.get(1, 0.0):.4f}" for column, each in found.items()]
    print(f"\nThe probability that a compound is in the regression: {', '.join(words)}.")
    picture(posterior).savefig(file, dpi=80)
    return posterior


def picture(posterior):
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    posterior.plot.weights(left, limit=6)
    posterior.plot.decisions(right)
    return figure


if __name__ == "__main__":
    main()
