"""Runs a case as a job of a Kubernetes cluster: printed, or submitted."""
