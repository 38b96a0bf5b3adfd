"""Statistics of a verdict: over the runs of one side, and between two sides.

Pure: the standard library only, and fast to import. Those within one run are in flagbench_core.
"""
