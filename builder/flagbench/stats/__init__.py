"""Statistics of a verdict: within one run, over the runs of one side, and between two sides.

Pure: the standard library only, and fast to import. The image side has a copy of `student` and `within`: hence
Python 3.8 there.
"""
