"""Objects in a bucket of an S3 server, over boto3: create-only puts, large files, the kinds of servers.

The image side has a copy, made by `flagbench manifests compile`: hence Python 3.8 and, beside the standard library,
boto3 alone, which is imported when a bucket is opened.
"""

from __future__ import annotations

from flagbench.s3.bucket import Bucket, Head, Listed
from flagbench.s3.errors import S3Error
from flagbench.s3.profiles import PROFILES, Address, Profile, parse_address
from flagbench.s3.transfers import download, get_file, put_file, sha256_of

__all__ = [
    "PROFILES",
    "Address",
    "Bucket",
    "Head",
    "Listed",
    "Profile",
    "S3Error",
    "download",
    "get_file",
    "parse_address",
    "put_file",
    "sha256_of",
]
