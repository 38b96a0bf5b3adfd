"""The version, where the build backend and the image side's build read it without importing anything."""

__version__ = "0.2.0.dev0"
