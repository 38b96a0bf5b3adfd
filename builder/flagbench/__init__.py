"""The host side of flagbench: what a person types. Imports nothing, so that `--version` is instant."""
