"""The folder that the address of a store names, on both sides."""

from __future__ import annotations

import pytest

from flagbench_core.store_layout import AddressError, folder_of


@pytest.mark.parametrize(
    ("address", "folder"),
    [
        ("file:///a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("FILE:///a/b", "/a/b"),
        ("file://localhost/a/b", "/a/b"),
        ("file:///a%20b/", "/a b/"),
        ("file:///a;b", "/a;b"),
        ("file:///a%23b%3F", "/a#b?"),
        ("file:///srv/%ff", "/srv/\udcff"),
        ("/a/b/../c", "/a/b/../c"),
        ("/a%20b#c", "/a%20b#c"),
    ],
)
def test_the_folder_of_an_address(address: str, folder: str) -> None:
    assert folder_of(address) == folder


@pytest.mark.parametrize(
    "address",
    [
        *(
            "https://host/x",
            "file://host/x",
            "file://",
            "file:",
            "file:x",
            "file://[x/y",
            "file:///a%00b",
            "/a\0b",
            "",
        ),
        *("file:///a#b", "file:///a?b", "ftp://h/x"),
    ],
)
def test_an_address_that_names_no_folder(address: str) -> None:
    with pytest.raises(AddressError):
        folder_of(address)
