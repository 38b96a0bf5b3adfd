"""How ranks are started and compute together."""
