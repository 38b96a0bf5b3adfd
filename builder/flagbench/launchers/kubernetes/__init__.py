"""Runs a case as a job of a Kubernetes cluster: planned as documents, checked, printed or submitted."""
