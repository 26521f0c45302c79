"""HTML and SVG from Python, without knowledge of runs."""
