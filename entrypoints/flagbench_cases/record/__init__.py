"""Assembles the record of a run from the evidence of its ranks."""
