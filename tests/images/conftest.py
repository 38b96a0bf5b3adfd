"""Tests of images are of the host side, which Python 3.8 does not run."""

import sys

collect_ignore_glob = ["test_*.py"] if sys.version_info < (3, 10) else []
