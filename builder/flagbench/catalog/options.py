"""Options as the command line of an image takes them, for what starts one: a launcher or a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def option_words(options: Mapping[str, object], settings: Sequence[str], *, full: bool) -> list[str]:
    """`--name=value` for each option that is not None, then `--set=NAME=VALUE` for each setting, then `--full`.

    One word each: a value that begins with a dash stays a value.
    """
    words = [f"{name}={value}" for name, value in options.items() if value is not None]
    return [*words, *(f"--set={setting}" for setting in settings), *(["--full"] if full else [])]
