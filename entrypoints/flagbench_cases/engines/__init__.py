"""How ranks are launched and how they compute together."""
