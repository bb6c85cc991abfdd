"""The loop of `DCC` and its steps, each a frozen dataclass of settings with functions of the state of the run."""

from anabranch.search.combining import Combining
from anabranch.search.discovery import Discovery
from anabranch.search.loop import infer_paths, search_paths
from anabranch.search.state import SearchState
from anabranch.search.stopping import Stopping
from anabranch.search.visiting import Visiting
from anabranch.search.walk import Walking

__all__ = ["Combining", "Discovery", "SearchState", "Stopping", "Visiting", "Walking", "infer_paths", "search_paths"]
