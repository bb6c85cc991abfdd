"""The engine that has a name."""

from typing import Any

from anabranch import engines
from anabranch.command.status import WrongUsage
from anabranch.dcc import DCC

__all__ = ["engine_of", "names"]


def names() -> list[str]:
    """The engines that can run without settings."""
    return ["DCC", "paper", *(name for name in engines.__all__ if _made(name) is not None)]


def engine_of(name: str) -> Any:
    """The engine with its default settings; `paper` is the paper's own algorithm."""
    if name in ("DCC", "paper"):
        return DCC() if name == "DCC" else DCC.paper()
    found = _made(name) if name in engines.__all__ else None
    if found is None:
        others = ", and ab.infer takes it with its settings from Python" if name in engines.__all__ else ""
        raise WrongUsage(f"there is no engine {name} without settings{others}; choose one of {', '.join(names())}")
    return found


def _made(name: str) -> Any:
    try:
        found = getattr(engines, name)()
    except TypeError:  # it needs moves or a guide
        return None
    return found if hasattr(found, "run") else None
