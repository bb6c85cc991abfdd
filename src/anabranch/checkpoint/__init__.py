"""Checkpoints: a run that was ended, by a power cut or a user, goes on to the same answer."""

from anabranch.checkpoint.checkpoint import Checkpoint
from anabranch.checkpoint.progress import RunProgress, read_progress

__all__ = ["Checkpoint", "RunProgress", "read_progress"]
