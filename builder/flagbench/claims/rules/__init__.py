"""The rules: each a pure function of a row, or of all rows, that yields what cannot be true."""
