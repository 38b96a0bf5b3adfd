"""Statistics of the steps of one run: medians and spread, the interval of a rate, and Student's t."""
