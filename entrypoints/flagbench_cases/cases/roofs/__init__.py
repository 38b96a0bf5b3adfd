"""The rates that a device reaches without a model. The manifest is manifests/cases/roofs.yaml."""
