"""Ways to run an image or its entrypoint, one adapter a file."""

from flagbench.launchers.base import Launcher, LaunchResult, RunRequest

__all__ = ["LaunchResult", "Launcher", "RunRequest"]
