"""Images: rendered from templates, with locked packages, built by an engine, and pushed to a registry or a bucket."""
