"""Records: what a run printed, read and checked."""
