"""Records: what a run printed, read, checked and stored, with the series and bundles that it is of."""
