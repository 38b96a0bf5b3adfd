"""The text of each generated file, from manifests, types and records of the checkout."""
