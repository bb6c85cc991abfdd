"""Conquer: inference on one path at a time (paper, section 4.2)."""
