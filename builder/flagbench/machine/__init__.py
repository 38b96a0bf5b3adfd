"""What this machine is, and what else uses it: its accelerators, their state, and the limits of a disturbance."""
