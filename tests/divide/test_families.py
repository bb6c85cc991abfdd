"""Families of paths in the drawing of the tree: counts, possible answers, what is and what is not alike."""

import re
from itertools import product

import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch.divide import families
from anabranch.divide.families import Asked, Leaf
from anabranch.divide.show import _names, draw_tree
from anabranch.divide.support import Bounds

BINARY = (Bounds(0, 1),)


def lines(program, *args, executions=2000, limit=40):
    title, *others = ab.find_paths(program, *args, executions=executions).tree(limit).splitlines()
    return [title.partition(", ")[0], *others]


def leaf(probability=0.1, dim=0, **values):
    """A leaf after these values of sites, all of which have the support 0 to 9."""
    asked = [Asked(name, value, (Bounds(0, 9),), 0.1) for name, value in values.items()]
    decisions = tuple((value, f"{name} = {value}") for name, value in values.items())
    return Leaf(decisions, dim, probability, asked=asked.__getitem__)


def subset(bits):
    asked = [Asked(f"z{i}", bit, BINARY, 0.5) for i, bit in enumerate(bits)]
    decisions = tuple((bit, f"z{i} = {bit}") for i, bit in enumerate(bits))
    return Leaf(decisions, sum(bits), 0.5 ** len(bits), asked=asked.__getitem__)


def subsets(n, keep=lambda bits: True):
    return [subset(bits) for bits in product((0, 1), repeat=n) if keep(bits)]


def test_independent_choices_are_one_line_with_the_exact_count():
    found = draw_tree("model", subsets(12), 40).splitlines()
    assert found == ["model", "└─ z0 … z11: any subset; 4,096 paths  [1]  0 to 12 dimensions"]
    some = list(subsets(12, keep=lambda bits: (bits[0] + 3 * bits[4] + bits[7] * bits[11]) % 4 != 1))
    assert 2000 < len(some) < 4096
    [_, line] = draw_tree("model", some, 40).splitlines()
    mass = f"{len(some) / 4096:.4g}"
    assert line.startswith(f"└─ z0 … z11: any subset; {len(some):,} of 4,096 paths found  [{mass}]")


def test_merges_are_as_many_as_decisions(monkeypatch):
    merging, merged = families._merging, []
    monkeypatch.setattr(families, "_merging", lambda *pair: merged.append(1) or merging(*pair))
    for n in (8, 12):
        merged.clear()
        assert families.grown(subsets(n)).merged.combinations == 2**n
        assert len(merged) < 2 ** (n + 1)  # the edges of the tree


def test_many_values_with_subtrees_alike_are_one_line():
    def mixture():
        for k in range(ab.sample("K", dist.DiscreteUniform(3, 17))):
            ab.sample(f"mu{k}", dist.Normal(0.0, 1.0))

    assert lines(mixture) == ["mixture: 15 paths", "└─ K = 3 … 17: 15 paths  [1]  3 to 17 dimensions"]


def test_a_family_within_one_branch():
    def nested():
        if ab.sample("z0", dist.Bernoulli(0.25)):
            for i in range(1, 6):
                if ab.sample(f"z{i}", dist.Bernoulli(0.5)):
                    ab.sample(f"b{i}", dist.Normal(0.0, 1.0))

    assert lines(nested) == [
        "nested: 33 paths",
        "├─ z0 = 0  [0.75]  0 dimensions",
        "└─ z0 = 1; z1 … z5: any subset; 32 paths  [0.25]  0 to 5 dimensions",
    ]


def test_shared_structure_is_drawn_once():
    leaves = [leaf(0.01, 1, m=m, K=k) for m in range(5) for k in (1, 2, 5)]
    leaves += [leaf(0.01, 2, m=m, K=3, j=j) for m in range(5) for j in range(2)]
    leaves += [leaf(0.75, 0, m=7)]
    assert draw_tree("model", leaves, 40).splitlines() == [
        "model",
        "├─ m = 7  [0.75]  0 dimensions",
        "└─ m = 0 … 4: 25 paths  [0.25]",
        "   ├─ K = 1, 2 or 5: 15 paths  [0.15]  1 dimension",
        "   └─ K = 3; j = 0 or 1: 10 paths  [0.1]  2 dimensions",
    ]


def test_what_is_not_alike_is_not_folded():
    """After K = k come k questions: the same ones, but never as many."""
    leaves = [
        leaf(0.05, 0, K=k, **{f"a{i}": bit for i, bit in enumerate(bits)})
        for k in (1, 2, 3, 4)
        for bits in product((0, 1), repeat=k)
    ]
    drawn = draw_tree("model", leaves, 40)
    assert "├─ K = 4; a0 = 0 or 1; a1 = 0 or 1; a2 = 0 or 1; a3 = 0 or 1: 16 paths  [0.8]  0 dimensions" in drawn
    assert "K = 3  [0.4]" in drawn
    assert drawn.count("K = ") == 4


def test_bounds_that_differ_are_not_alike():
    """The answers of a restaurant depend on how many tables there are, whether or not all of them were met."""

    def restaurant():
        tables = [1.0]
        for i in range(1, 6):
            weights = np.array([*tables, 1.0])
            at = int(ab.sample(f"z{i}", dist.Categorical(weights / weights.sum())))
            tables[at : at + 1] = [tables[at] + 1] if at < len(tables) else [1.0]

    for executions in (200, 4000):
        division = ab.find_paths(restaurant, executions=executions)
        drawn = division.tree(1000)
        assert sum(counts(line)[0] for line in leaf_lines(drawn)) == len(division)
        assert ("found" in drawn.partition("\n")[2]) == (len(division) < 203)
        assert sum(counts(line)[1] for line in leaf_lines(drawn)) <= 203


def leaf_lines(drawn):
    return [line for line in drawn.splitlines()[1:] if "dimension" in line]


def counts(line):
    """The paths found, and those possible, of a line."""
    found = re.search(r"([\d,]+)(?: of ([\d,]+))? paths?(?: found)?  \[", line)
    numbers = [int(each.replace(",", "")) for each in found.groups() if each] if found else [1]
    return numbers[0], numbers[-1]


def test_answers_with_all_of_the_probability_are_all_that_there_are():
    """A category of probability zero is in the bounds, and is not possible."""

    def program():
        first = ab.sample("first", dist.Categorical(np.array([0.5, 0.5])))
        weights = np.ones(12) / 6 * (np.arange(12) % 2 == int(first))
        for i in range(ab.sample("second", dist.Categorical(weights))):
            ab.sample(f"x{i}", dist.Normal(0.0, 1.0))

    drawn = lines(program)
    assert not any("first = 0 or 1" in line or "found" in line for line in drawn)
    assert len(drawn) == 15


def test_conditions_on_reals_are_folded_unless_they_exclude_each_other():
    def independent():
        for i in range(5):
            x = ab.sample(f"x{i}", dist.Normal(0.0, 1.0))
            if x > 0:
                ab.sample(f"y{i}", dist.Normal(0.0, 1.0))

    [_, line] = lines(independent)
    assert " or not ×5: 32 paths  [1]  5 to 10 dimensions" in line
    [_, line] = lines(independent, executions=40)
    assert " of 32 paths found" in line

    def thresholds():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        for i in range(9):
            if x > i / 5:
                ab.sample(f"y{i}", dist.Normal(0.0, 1.0))

    assert not any("or not" in line for line in lines(thresholds))


def test_several_decision_sequences_of_one_path_are_not_called_paths():
    leaves = [
        Leaf(((a, f"x{a}"), (b, f"y{b}")), 1, 0.1, unique=False, asked=[Asked("x", a), Asked("y", b)].__getitem__)
        for a in range(3)
        for b in range(4)
    ]
    assert "12 decision sequences" in draw_tree("model", leaves, 5)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["z3", "z4", "z5"], "z3 … z5"),
        (["z", "z[1]", "z[2]"], "z … z[2]"),
        (["at@3:11", "at@3:11[1]", "at@3:11[2]"], "at@3:11 … at@3:11[2]"),
        (["z1", "z3", "z5"], "z1, z3, z5"),
        (["age", "bmi", "sex", "smokes"], "age, bmi, sex, smokes"),
        (["age", "bmi", "sex", "smokes", "height"], "age, bmi, sex, …, height (5 choices)"),
    ],
)
def test_names_of_choices(names, words):
    assert _names(names) == words


def test_thousands_of_decisions_do_not_exhaust_the_stack():
    rows = np.random.default_rng(0).integers(0, 2, (20, 1200)).tolist()
    [_, line] = draw_tree("model", [subset(row) for row in rows], 40).splitlines()
    assert line.startswith("└─ z0 … z1199: any subset; 20 of about 10^361 paths found")


def test_one_line_for_the_division_itself():
    def program():
        for i in range(4):
            if ab.sample(f"z{i}", dist.Bernoulli(0.5)):
                ab.sample(f"b{i}", dist.Normal(0.0, 1.0))

    assert str(ab.find_paths(program)) == "program: 16 paths, 100 % of the prior mass found"
