"""Images on their way to a registry or a bucket, and from a bucket back into the engine."""
