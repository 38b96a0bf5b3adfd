"""Objects in a bucket of an S3 server, over boto3: create-only puts, large files, the kinds of servers.

boto3 is imported when a bucket is opened.
"""

from __future__ import annotations

from flagbench_core.s3.bucket import Bucket, Head, Listed
from flagbench_core.s3.errors import S3Error
from flagbench_core.s3.profiles import PROFILES, Address, Profile, parse_address
from flagbench_core.s3.transfers import get_file, put_file, sha256_of

__all__ = [
    "PROFILES",
    "Address",
    "Bucket",
    "Head",
    "Listed",
    "Profile",
    "S3Error",
    "get_file",
    "parse_address",
    "put_file",
    "sha256_of",
]
