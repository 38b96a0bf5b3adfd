"""The proxies of this machine for the steps of a build.

An engine predefines these build arguments: they are in the environment of every RUN step without being declared,
and neither the image's history nor its environment nor the cache key of a step contains them. The client reads their
values from its own environment, so that no command line shows them, and adds those of docker's config.json itself.
"""

from __future__ import annotations

from collections.abc import Mapping

NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")


def proxy_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The proxies that are set, in upper and in lower case: programs differ in which they read."""
    variables = {}
    for name in NAMES:
        value = environment.get(name.lower()) or environment.get(name)
        if value:
            variables.update({name: value, name.lower(): value})
    return variables
