"""Images outside an engine: as registries and buckets keep them."""
