"""The generators of the tiny sets, a module for each case. They also run on Python 3.8."""
