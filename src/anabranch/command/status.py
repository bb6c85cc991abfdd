"""The exit status of the command, and the error for wrong usage."""

__all__ = ["FAILED", "FINE", "INTERRUPTED", "MEANINGS", "WARNED", "WRONG_USAGE", "WrongUsage"]

FINE, FAILED, WRONG_USAGE, WARNED, INTERRUPTED = 0, 1, 2, 3, 130
MEANINGS = """\
  0    finished, and no diagnostic gives a warning
  1    failed: the program or the inference raised an error, or the self-check did not pass
  2    wrong usage: an argument, the program or the data cannot be used as given
  3    finished, with warnings: there is an answer, and a reason to doubt it
  130  interrupted; `run` has written what there was"""


class WrongUsage(Exception):
    """Raised for arguments, programs and data that cannot be used; the message says what to do."""
