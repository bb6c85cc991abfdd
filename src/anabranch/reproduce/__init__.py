"""The experiments of the paper, run again."""
