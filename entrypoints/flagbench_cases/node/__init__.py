"""The parent process of a node, which outlives its ranks. It does not import torch."""
