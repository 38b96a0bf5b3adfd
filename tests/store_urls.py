"""Addresses of stores in folders, which both sides read alike."""

FOLDERS = {
    "file:///a/b": "/a/b",
    "file:/a/b": "/a/b",
    "FILE:///a/b": "/a/b",
    "file://localhost/a/b": "/a/b",
    "file:///a%20b/": "/a b",
    "file:///a;b": "/a;b",
    "file:///a%23b%3F": "/a#b?",
    "file:///srv/%ff": "/srv/\udcff",
    "/a/b/../c": "/a/c",
    "/a%20b#c": "/a%20b#c",  # a path is no URL: nothing in it is decoded
}
NOT_FOLDERS = (
    *("https://host/x", "file://host/x", "file://", "file:", "file:x", "file://[x/y", "file:///a%00b"),
    *("file:///a#b", "file:///a?b", "ftp://h/x", "/a\0b"),
)
