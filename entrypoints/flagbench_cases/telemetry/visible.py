"""CUDA_VISIBLE_DEVICES: which physical device each device number of a run means."""

from typing import List, Optional, Sequence, Union


def visible_devices(value: Optional[str], uuids: Sequence[str]) -> List[Union[int, str]]:
    """The physical devices that CUDA shows, in the order in which a run numbers them.

    `value` is the variable (None: unset), `uuids` those of all physical devices, by physical index. The
    result holds physical indices, and the UUIDs of MIG instances as they stand. As in CUDA, a UUID may be
    shortened to a unique prefix, the list ends before its first invalid entry, and a device named twice
    leaves none (CUDA C++ Programming Guide, "CUDA Environment Variables").
    """
    if value is None:
        return list(range(len(uuids)))
    found: List[Union[int, str]] = []
    for token in value.split(","):
        device = _device(token.strip(), uuids)
        if device is None:
            break
        found.append(device)
    return found if len(set(found)) == len(found) else []


def _device(token: str, uuids: Sequence[str]) -> Optional[Union[int, str]]:
    if token.startswith("MIG-"):
        return token
    if token.startswith("GPU-"):
        matches = [index for index, uuid in enumerate(uuids) if uuid.startswith(token)]
        return matches[0] if len(matches) == 1 else None
    if token.isdigit() and int(token) < len(uuids):
        return int(token)
    return None
