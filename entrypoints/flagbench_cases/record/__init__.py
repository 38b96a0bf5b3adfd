"""The record of a run, from what its ranks left behind."""
