"""DistilBERT on SST-2: model, data and step. The manifest is manifests/cases/distilbert.yaml."""
