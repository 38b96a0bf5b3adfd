"""What has been published of a model for a device, and the rows that come closest. Never a verdict."""
