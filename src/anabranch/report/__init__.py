"""Report: a posterior as text, HTML, figure and ArviZ data; the progress of a run."""
