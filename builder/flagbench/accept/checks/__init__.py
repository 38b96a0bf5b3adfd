"""The checks of an acceptance, by what they look at: the machine before a run, a run, its devices, its numbers."""
