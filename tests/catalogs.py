"""flagbench's own manifests, read once for all test modules that are about them."""

from pathlib import Path

from flagbench.manifests.load import load_catalog

CATALOG = load_catalog(Path(__file__).resolve().parents[1] / "manifests")
