"""The image of a container that is named by its address in a bucket: pulled before the container is made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

from flagbench.oci.bucket_address import parse_bucket_image
from flagbench.progress import Progress


def pulled_image(image: str, progress: Progress, connect: Callable[[], Any] | None) -> str:
    """The id of an image in a bucket, which is pulled if the engine lacks it; the bucket is asked in any case.

    `connect` makes the client of the engine, unless it is docker's own. Raises FlagbenchError as `pull` does.
    """
    # What runs an image that is here needs neither.
    from flagbench.engines import Engine, open_client
    from flagbench.oci.pull import pull

    with closing(Engine((connect or open_client)())) as engine:
        return pull(parse_bucket_image(image), engine, progress).image.id
