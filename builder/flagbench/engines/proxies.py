"""The proxies of this machine as build arguments, the only way that leaves no trace in an image.

An engine predefines these arguments: they are in the environment of every RUN step without being declared,
and neither the image's history nor its environment nor the cache key of a step holds them. Sources, the first
that names a value wins: the caller's own build arguments, the environment, `proxies` in docker's config.json.
"""

from __future__ import annotations

from collections.abc import Mapping

NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")


def proxy_args(environment: Mapping[str, str], configured: Mapping[str, str]) -> dict[str, str]:
    """Build arguments for the proxies that are set, in upper and in lower case: programs differ in what they read.

    Args:
        environment: of this process.
        configured: the same names from docker's configuration file.
    """
    arguments = {}
    for name in NAMES:
        spellings = (name.lower(), name)
        found = [source[key] for source in (environment, configured) for key in spellings if source.get(key)]
        if found:
            arguments.update(dict.fromkeys(spellings, found[0]))
    return arguments
