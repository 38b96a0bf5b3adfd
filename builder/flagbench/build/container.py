"""One command in a container of an image, without a network, removed afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from flagbench.engines import open_client
from flagbench.engines.connect import engine_errors
from flagbench.errors import ExitCode, FlagbenchError

_LABEL = {"dev.flagbench.role": "contents"}


def run_in_container(image_id: str, command: Sequence[str]) -> bytes:
    """What the command printed on stdout.

    Raises:
        FlagbenchError: (build failed) the command failed, with the last it said on stderr; (engine) the engine
            could not run it.
    """
    client = open_client()
    with engine_errors(f"run a container of {image_id}", client.api.base_url):
        container = client.containers.create(
            image_id, list(command[1:]), entrypoint=[command[0]], network_mode="none", labels=_LABEL
        )
        try:
            container.start()
            status = int(container.wait()["StatusCode"])
            answer = bytes(container.logs(stdout=True, stderr=False))
            told = container.logs(stdout=False, stderr=True, tail=1) if status else b""
        finally:
            container.remove(force=True)
    if status:
        raise FlagbenchError(
            f"{command[0]} in the image {image_id} ended with {status}: {told.decode('utf-8', 'replace').strip()}",
            remedy="look whether the interpreter that the stack's manifest names runs in the image",
            code=ExitCode.BUILD_FAILED,
        )
    return answer
