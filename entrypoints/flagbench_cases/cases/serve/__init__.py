"""Serves models of the Llama family with an inference engine. Each case is a manifest of the family `serve`."""
