"""Runs: what an image is asked for, where it runs, and whether a published number is reproduced by it."""
