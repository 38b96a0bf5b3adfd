"""Ways to run a case's image or its entrypoint, one adapter a file or a package."""

from flagbench.launchers.base import Launcher, LaunchResult

__all__ = ["LaunchResult", "Launcher"]
