"""The loop of `DCC` and its steps, each a frozen dataclass of settings with functions of the state of the run."""
