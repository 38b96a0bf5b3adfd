"""Maps the device numbers of a run to physical devices, by CUDA_VISIBLE_DEVICES."""

from typing import List, Optional, Sequence, Union


def visible_devices(value: Optional[str], uuids: Sequence[str]) -> List[Union[int, str]]:
    """The visible physical devices, in the order in which a run numbers them.

    `value`: the variable (None: unset); `uuids`: the UUIDs of all physical devices, by physical index. The result has
    physical indices, and the unchanged UUIDs of MIG instances. As in CUDA, a UUID may be abbreviated to a unique
    prefix, the list ends before its first invalid entry, and with duplicates no device is visible (CUDA C++
    Programming Guide, "CUDA Environment Variables").
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
