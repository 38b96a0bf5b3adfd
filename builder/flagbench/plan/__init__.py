"""Predicts the memory of the layouts of a split model, and which of them fit."""
