"""Runs: requests to an image, the launchers that start it, series, and reproductions of published rows."""
