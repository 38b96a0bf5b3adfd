"""`flagbench reproduce`: the plan of a row, checks of the machine, repeated runs, and their bundle."""
