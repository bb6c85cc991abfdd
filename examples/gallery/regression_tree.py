"""On what does ozone in New York depend? A regression tree whose shape, questions and thresholds are unknown.

A tree is a leaf, or a question with a tree for each answer (Chipman, George and McCulloch, 1998), here of depth two at
most. The program is a recursive function.
"""

from collections import Counter
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
from matplotlib.figure import Figure

import anabranch as ab

DATA = pd.read_csv(Path(__file__).parent / "data" / "ozone.csv", comment="#")
CUTS = {"temperature": [75, 80, 85], "wind": [7, 9, 11], "radiation": [100, 150, 200]}


def tree(table, name, depth):
    """The mean of each row, and the tree in words."""
    if depth == 0 or ab.sample(f"{name}_is_leaf", dist.Bernoulli(0.5)):
        return ab.sample(f"{name}_mean", dist.Normal(3.4, 1.0)), "leaf"
    column = list(CUTS)[ab.sample(f"{name}_asks", dist.Categorical(jnp.ones(3) / 3))]
    cut = jnp.array(CUTS[column])[ab.sample(f"{name}_cut", dist.DiscreteUniform(0, len(CUTS[column]) - 1))]
    yes, if_yes = tree(table, f"{name}_yes", depth - 1)
    no, if_no = tree(table, f"{name}_no", depth - 1)
    return jnp.where(table[column].to_numpy() > cut, yes, no), f"{column}({if_yes}, {if_no})"


def ozone(table):
    mean, words = tree(table, "root", depth=2)
    noise = ab.sample("noise", dist.HalfNormal(1.0))
    ab.deterministic("mean", mean * jnp.ones(len(table)))
    ab.observe("log_ozone", dist.Normal(mean, noise), np.log(table["ozone"].to_numpy()))
    return words


def main(file="regression_tree.png", *, tolerance=0.02, **limits):
    posterior = ab.infer(ozone, DATA, seed=0, tolerance=tolerance, **limits)
    print(posterior)

    first = posterior.probability("root_asks")
    words = Counter(draw.result for draw in posterior.draws(1000)).most_common(1)[0][0]
    print(
        f"\nThe first question is about the temperature with probability {first[0]:.3f} ± {first.errors[0]:.3f}. The "
        f"commonest tree is {words}."
    )
    picture(posterior).savefig(file, dpi=80)
    return posterior


def picture(posterior):
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    mean = np.exp(posterior.draws(500)["mean"]).mean(axis=0)
    shown = left.scatter(DATA.temperature, DATA.wind, c=mean, s=12 + DATA.ozone, alpha=0.8)
    figure.colorbar(shown, label="fitted ozone, ppb")
    left.set(xlabel="temperature, °F", ylabel="wind, mph", title="area: measured ozone")
    trees = Counter(draw.result for draw in posterior.draws(1000)).most_common(5)
    right.barh([tree.replace("(", "\n(", 1) for tree, _ in trees], [count / 1000 for _, count in trees])
    right.invert_yaxis()
    right.tick_params(labelsize=7)
    right.set(xlabel="share of the draws")
    return figure


if __name__ == "__main__":
    main()
