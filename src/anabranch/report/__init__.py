"""Report: a posterior as text, picture and data for other tools, and what a run shows while it goes."""
