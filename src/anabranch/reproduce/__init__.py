"""The experiments of the paper, reproduced."""
