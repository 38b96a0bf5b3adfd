"""The image side of flagbench: what a container runs. Python 3.8 to 3.13, torch 1.12 to current."""
