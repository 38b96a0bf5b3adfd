"""Statistics of the steps of one run: the interval of a rate, and Student's t."""
