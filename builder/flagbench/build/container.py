"""One command in a container of an image, without a network, removed afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from flagbench.engines import open_client
from flagbench.engines.connect import address, engine_errors
from flagbench.errors import ExitCode, FlagbenchError

_LABEL = {"dev.flagbench.role": "contents"}


def run_in_container(image_id: str, command: Sequence[str]) -> bytes:
    """What the command printed on stdout.

    Raises:
        FlagbenchError: (build failed) the command failed, with the last line of its stderr; (engine) the engine
            could not run it.
    """
    client = open_client()
    try:
        with engine_errors(f"run a container of {image_id}", address()):
            container = client.containers.create(
                image_id, list(command[1:]), entrypoint=[command[0]], network_mode="none", labels=_LABEL
            )
            try:
                container.start()
                status = int(container.wait()["StatusCode"])
                answer = bytes(container.logs(stdout=True, stderr=False))
                said = container.logs(stdout=False, stderr=True, tail=1) if status else b""
            finally:
                container.remove(force=True)
    finally:
        client.close()
    if status:
        raise FlagbenchError(
            f"{command[0]} in the image {image_id} ended with {status}: {said.decode('utf-8', 'replace').strip()}",
            remedy="check that the interpreter that the stack's manifest names runs in the image",
            code=ExitCode.BUILD_FAILED,
        )
    return answer
