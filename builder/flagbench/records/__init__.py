"""Records: what a run printed, read, checked and stored, and the series and bundles that belong to it."""
