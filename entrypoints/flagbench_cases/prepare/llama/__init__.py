"""Weights of the Llama family: one format, from Hugging Face's and other layouts, read in parts by any layout."""
