"""Who is our nearest relative? The tree of five apes, from 898 sites of mitochondrial DNA.

A tree without a root is grown ape by ape: each joins one of the branches of the tree so far. That is fifteen trees,
each with seven branches of unknown length (Felsenstein's pruning). Do transitions (A to G, C to T) have a rate of their
own (Kimura's model), or do all changes have the same (Jukes and Cantor's)?
"""

from collections import Counter
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
from matplotlib.figure import Figure

import anabranch as ab

DATA = pd.read_csv(Path(__file__).parent / "data" / "apes.csv", comment="#")
APES = list(DATA.columns[:-1])


def apes(bases, sites):
    tree = tuple(APES[:3])
    for ape in APES[3:]:
        places = branches(tree)
        tree = join(tree, places[ab.sample(f"{ape}_joins", dist.DiscreteUniform(0, len(places) - 1))], ape)
    ratio = ab.sample("ratio", dist.LogNormal(1.0, 1.0)) if ab.sample("transitions", dist.Bernoulli(0.5)) else 1.0
    first, second, third = (along_branch(child, bases, ratio) for child in tree)
    ab.factor("sites", jnp.sum(sites * jnp.log((first * second * third).mean(axis=1))))
    return written(tree)


def along_branch(tree, bases, ratio):
    """The likelihood of the data below a branch, for each base (A, G, C, T) at its upper end."""
    if isinstance(tree, str):
        below = bases[tree]
    else:
        below = along_branch(tree[0], bases, ratio) * along_branch(tree[1], bases, ratio)
    length = ab.sample(f"length of {written(tree)}", dist.Exponential(10.0))
    any_change, transition = jnp.exp(-4 * length / (ratio + 2)), jnp.exp(-2 * length * (ratio + 1) / (ratio + 2))
    kind = below.reshape(-1, 2, 2).mean(axis=2).repeat(2, axis=1)  # A or G, C or T
    every = below.mean(axis=1, keepdims=True)
    return transition * (below - kind) + any_change * (kind - every) + every


def branches(tree):
    """Every branch, as what is below it."""
    return [place for child in tree for place in [child, *([] if isinstance(child, str) else branches(child))]]


def join(tree, place, ape):
    """The tree with an ape that joins the branch above a place."""
    if tree == place:
        return tree, ape
    return tree if isinstance(tree, str) else tuple(join(child, place, ape) for child in tree)


def written(tree):
    """In Newick's notation, the same for the same tree."""
    return tree if isinstance(tree, str) else f"({', '.join(sorted(map(written, tree)))})"


def main(file="phylogeny.png", *, tolerance=0.02, **limits):
    bases = {ape: (DATA[ape].to_numpy()[:, None] == np.array(list("AGCT"))).astype(float) for ape in APES}
    posterior = ab.infer(apes, bases, DATA.sites.to_numpy(float), seed=0, tolerance=tolerance, **limits)
    print(posterior)

    transitions = posterior.probability("transitions")[1]
    trees = Counter(draw.result for draw in posterior.draws(1000))
    print(f"\nTransitions have a rate of their own with probability {transitions:.6f}. Trees:")
    for tree in trees:
        print("  {} with probability {:.3f} ± {:.3f}".format(tree, *of_tree(posterior, tree)))
    picture(posterior, trees).savefig(file, dpi=80)
    return posterior


def of_tree(posterior, tree):
    """The probability of a tree, and its error."""
    return posterior.expectation(lambda draw: draw.result == tree)


def picture(posterior, trees):
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = [tree for tree, _ in trees.most_common(3)]
    left.barh([name.replace("), ", "),\n") for name in names], [of_tree(posterior, tree)[0] for tree in names])
    left.invert_yaxis()
    left.tick_params(labelsize=8)
    left.set(xlabel="probability")
    right.hist(np.ma.compressed(posterior.draws(2000)["ratio"]), bins=40)
    right.set(xlabel="rate of transitions over that of transversions", yticks=[])
    return figure


if __name__ == "__main__":
    main()
