"""One node's parent process, which outlives its ranks. It imports no torch."""
