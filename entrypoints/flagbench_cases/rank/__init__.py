"""One rank: the loop that trains a case, and the only clock that times it."""
