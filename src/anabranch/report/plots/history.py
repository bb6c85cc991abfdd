"""The evidence against the evaluations that it took."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from anabranch import errors
from anabranch.combine.evidence import Evidence
from anabranch.combine.history import History
from anabranch.report.palette import BLACK, BLUE, SKY

__all__ = ["draw_history"]

SHOWN = 0.9
"""Share of the run that the vertical axis shows in full: the first estimates may be thousands of nats off."""


def draw_history(axes: Axes, history: History, evidence: Evidence) -> Axes:
    """A step for each visit of a path, and the last estimate with its error as a band."""
    evaluations, logs = np.array(history.evaluations, float), np.array(history.log_evidence, float)
    known = np.isfinite(logs)
    if evidence.log_evidence is None or not np.isfinite(evidence.log_evidence) or not known.any():
        raise errors.NoDraws(
            "the run has no history of its evidence", remedy="Use an engine that estimates the evidence, as ab.DCC does"
        )
    evaluations, logs = evaluations[known], logs[known]
    last, sd = evidence.log_evidence, evidence.log_evidence_sd
    if sd is not None and np.isfinite(sd):
        axes.axhspan(last - sd, last + sd, color=SKY, alpha=0.4, linewidth=0, label=f"± {sd:.2g}, one standard error")
    axes.axhline(last, color=BLACK, linewidth=0.8, label=f"at the end: {last:.3f}")
    axes.step(evaluations, logs, where="post", color=BLUE, label="after each visit")
    wide = 3 * sd if sd is not None and np.isfinite(sd) else 1e-3
    later = np.append(logs[evaluations >= (1 - SHOWN) * evaluations[-1]], [last - wide, last + wide])
    low, high = later.min(), later.max()
    margin = 0.08 * (high - low)
    axes.set_ylim(low - margin, high + margin)
    if ((logs < low) | (logs > high)).any():
        axes.set_title("the first visits are outside", fontsize="small", loc="left")
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel("evaluations of densities")
    axes.set_ylabel("log evidence")
    axes.legend(fontsize="small", loc="best")
    return axes
