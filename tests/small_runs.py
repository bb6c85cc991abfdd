"""Programs and settings with which a run takes a second or two: for tests of where and when its visits are made."""

import numpyro.distributions as dist

import anabranch as ab

SMALL = ab.DCC(executions=200, max_executions=200, evaluations_per_visit=500, evaluations_per_first_visit=500)


def coins(heads):
    """Three paths, of which two are visited several times."""
    p = 0.5
    if ab.sample("biased", dist.Bernoulli(0.5)):
        p = ab.sample("p", dist.Beta(1.0, 1.0))
        if p > 0.7:
            p = 1 - 0.1 * ab.sample("q", dist.Beta(2.0, 1.0))
    ab.observe("heads", dist.Binomial(10, p), heads)


def counts(y):
    """Counts that are summed out, over windows."""
    rate = ab.sample("rate", dist.Gamma(2.0, 1.0))
    n = ab.sample("n", dist.Poisson(rate).expand((2,)).to_event(1))
    ab.observe("y", dist.Normal(n * 1.0, 0.5), y)
