"""How far a run has come, and displays of it: in a terminal, in a notebook, or as a line now and then."""

from anabranch.progress.displays import Lines, Live, Notebook, Progress, make_progress
from anabranch.progress.meter import Meter, Status

__all__ = ["Lines", "Live", "Meter", "Notebook", "Progress", "Status", "make_progress"]
