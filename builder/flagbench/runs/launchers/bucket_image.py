"""The image of a container that is named by its address in a bucket: pulled before the container is made."""

from __future__ import annotations

from contextlib import closing

from flagbench.images.bucket import parse_bucket_image
from flagbench.progress import Progress


def pulled_image(image: str, progress: Progress) -> str:
    """The id of an image in a bucket, which is pulled if the engine lacks it; the bucket is asked in any case.

    Raises FlagbenchError as `pull` does.
    """
    # What runs an image that is here needs neither.
    from flagbench.images.docker import open_engine
    from flagbench.images.pull import pull

    with closing(open_engine()) as engine:
        return pull(parse_bucket_image(image), engine, progress).image.id
