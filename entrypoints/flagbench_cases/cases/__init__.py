"""The cases: each a folder with what it implements of the contract, its data, its preparation and its tiny set."""
