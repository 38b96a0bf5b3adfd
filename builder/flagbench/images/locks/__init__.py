"""The locks of stacks: which packages, by hash, and which base, by digest, an image is made of."""
