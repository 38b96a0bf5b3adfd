"""Published tables: read in the form in which publishers write them, and checked for what cannot be true."""
