"""Checkpoints: a run that was ended, by a power cut or a user, goes on to the same answer."""

from anabranch.checkpoint.checkpoint import Checkpoint
from anabranch.checkpoint.continuing import Continuing, SavedRun
from anabranch.checkpoint.folder import INDEX
from anabranch.checkpoint.progress import RunProgress, read_progress
from anabranch.checkpoint.visit_log import VisitLog

__all__ = ["INDEX", "Checkpoint", "Continuing", "RunProgress", "SavedRun", "VisitLog", "read_progress"]
