"""Programs for work on flagbench itself: they are not installed with it."""
