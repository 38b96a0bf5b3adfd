"""The random generators of a rank, as part of a checkpoint."""

from typing import Dict

import torch


def generators(device: torch.device) -> Dict[str, torch.Tensor]:
    """The states of this rank's random generators."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_generators(device: torch.device, states: Dict[str, torch.Tensor]) -> None:
    """Restore the states that `generators` returned."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def of_rank(states: Dict[str, torch.Tensor], rank: int) -> Dict[str, torch.Tensor]:
    """The states of one rank, from those of all."""
    prefix = "%d." % rank
    return {name[len(prefix) :]: state for name, state in states.items() if name.startswith(prefix)}
