"""What has been published of a model for a device, and an estimate where nothing has. Never a verdict."""
