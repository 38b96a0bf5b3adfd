"""The command line: commands without logic of their own, and the one edge where errors become text."""
