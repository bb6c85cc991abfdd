"""Every program of the corpus runs under plain NumPyro, and its number of paths is plausible."""

import itertools

import jax.numpy as jnp
import pytest
from numpyro import handlers

from anabranch.addresses import execution
from corpus import CASES

pytestmark = pytest.mark.one_in(10)


def run(case, seed, fixed=()):
    """One execution: its random sites, with the first discrete ones set to the values in `fixed`, in order."""
    values = iter(fixed)

    def choose(site):
        return next(values, None) if is_discrete(site) else None

    with execution(case.program):
        chosen = handlers.substitute(handlers.seed(case.program, seed), substitute_fn=choose)
        sites = handlers.trace(chosen).get_trace(*case.args)
    return {name: site for name, site in sites.items() if site["type"] == "sample"}


def is_discrete(site):
    return site["type"] == "sample" and not site["is_observed"] and site["fn"].support.is_discrete


def support(distribution):
    """All values of a discrete site; NumPyro does not enumerate the combinations of a vector."""
    if not distribution.shape():
        return list(distribution.enumerate_support())
    scalars = distribution.base_dist.enumerate_support(expand=False).ravel()
    return [jnp.stack(values) for values in itertools.product(scalars, repeat=distribution.shape()[0])]


def assignments(case, seed):
    """The addresses of every execution that differs in its discrete sites, with the real ones drawn from the seed."""
    pending = [()]
    while pending:
        fixed = pending.pop()
        sites = run(case, seed, fixed)
        yield tuple(sites)
        discrete = [site for site in sites.values() if is_discrete(site)]
        values = [site["value"] for site in discrete]
        for depth in range(len(fixed), len(discrete)):
            others = [value for value in support(discrete[depth]["fn"]) if (value != values[depth]).any()]
            pending += [(*values[:depth], value) for value in others]


def test_names_are_distinct():
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_runs_under_plain_numpyro(case):
    for seed in range(3):
        sites = run(case, seed)
        assert any(not site["is_observed"] for site in sites.values())


@pytest.mark.parametrize("case", [case for case in CASES if case.paths], ids=lambda case: case.name)
def test_number_of_paths(case):
    if any(is_discrete(site) for site in run(case, 0).values()):
        # Two paths may meet the same addresses, and not every discrete value need be asked about.
        executions = list(assignments(case, 0))
        assert len(set(executions)) <= case.paths <= len(executions)
    else:
        # Branches on real numbers only, each of which is likely enough to come up.
        assert len({tuple(run(case, seed)) for seed in range(30)}) == case.paths
