"""Aquila-33B scores LAMBADA. The manifest is manifests/cases/aquila-33b.yaml."""
