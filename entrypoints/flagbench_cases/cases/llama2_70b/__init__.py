"""Llama2-70B pretraining, split over ranks. The manifest is manifests/cases/llama2-70b.yaml."""
