"""Report: a posterior as text, HTML, pictures and ArviZ data."""
