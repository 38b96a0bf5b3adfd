"""The command line: commands without logic of their own, and the one place where errors become text."""
