"""Code shared by all packages: configuration, errors, spool, output, files. It does not import torch."""
