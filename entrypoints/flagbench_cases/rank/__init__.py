"""The process of one rank: the loops that run a case, and the stopwatch that times them."""
