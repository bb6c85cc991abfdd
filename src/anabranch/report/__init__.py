"""Report: a posterior as text, HTML, figure and ArviZ data."""
