"""Is this machine what it should be: preflight, roofs and one case within minutes, and a certificate of it."""
