"""What images and bundles cost on their way to a bucket, beside what others have for it; ratios within one run.

A large file beside `aws s3 cp` to the same server, in turns: at least 0.9 of its speed. An image to the bucket beside
`docker push` of it to a registry on this machine: at least as fast. The same image again: no blob is sent, and under
2 s. A second case on the same stack: at most 1 % of the bytes. No process of ours takes more than 300 MB.

Needs what `.ci/storage` and `.ci/containers` start, with their variables, and starts a registry of its own; without
them it says so and measures nothing. `--quick`: a smaller file, and no image.
"""

import argparse
import contextlib
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

FILE_BYTES, QUICK_BYTES = 2**30, 2**28
ROUNDS, IMAGE_ROUNDS = 3, 2
SPEED, REPUSH_SECONDS, SECOND_CASE, PEAK_BYTES = 0.9, 2.0, 0.01, 300 * 10**6
SERVER = "FLAGBENCH_TEST_S3"
# As a bundle is stored, whose sha256 is known since it was written.
PUT = """
import sys
from pathlib import Path
from flagbench.s3 import Bucket, parse_address, put_file
bucket, key, path = sys.argv[1:]
put_file(Bucket(parse_address(bucket)), key, Path(path), key.rpartition("/")[2])
"""


def environment():
    """That of a client of the test server."""
    return {
        **os.environ,
        "AWS_ENDPOINT_URL": os.environ[SERVER],
        "AWS_ACCESS_KEY_ID": os.environ[f"{SERVER}_KEY"],
        "AWS_SECRET_ACCESS_KEY": os.environ[f"{SERVER}_SECRET"],
        # Since 1.36 it sends checksums that this server refuses in a bucket over TLS, and computes them everywhere.
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


def run(*command):
    """Run a command to its end; its seconds, its peak memory in bytes, and what it printed on stdout."""
    began = time.monotonic()
    child = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    printed, said = child.communicate()
    seconds = time.monotonic() - began
    if child.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {child.returncode}: {said.decode()}")
    # Of the largest child so far, in kilobytes; with its own children, which these commands do not have.
    return seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024, printed


def client():
    """boto3's client of the test server."""
    import boto3
    from botocore.config import Config

    given = environment()
    return boto3.client(
        "s3",
        endpoint_url=given["AWS_ENDPOINT_URL"],
        aws_access_key_id=given["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=given["AWS_SECRET_ACCESS_KEY"],
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )


@contextlib.contextmanager
def fresh_bucket():
    """The name of an empty bucket, removed with everything in it."""
    server, name = client(), f"flagbench-bench-{uuid.uuid4().hex[:8]}"
    server.create_bucket(Bucket=name)
    try:
        yield name
    finally:
        for page in server.get_paginator("list_objects_v2").paginate(Bucket=name):
            for found in page.get("Contents", ()):
                server.delete_object(Bucket=name, Key=found["Key"])
        server.delete_bucket(Bucket=name)


def file_beside_aws(bucket, size):
    """Whether `put_file` is fast enough, and small enough."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")
        with path.open("wb") as file:
            generator = random.Random(1)
            for _ in range(size // 2**20):
                file.write(generator.randbytes(2**20))
        from flagbench.s3 import sha256_of

        key = f"bundles/{sha256_of(path)}"
        ours, theirs, peak = [], [], 0
        for _ in range(ROUNDS):
            seconds, peak, _ = run(sys.executable, "-c", PUT, f"s3://{bucket}", key, str(path))
            ours.append(seconds)
            client().delete_object(Bucket=bucket, Key=key)
            theirs.append(run("aws", "s3", "cp", "--quiet", str(path), f"s3://{bucket}/theirs")[0])
            client().delete_object(Bucket=bucket, Key="theirs")
    ratio = min(theirs) / min(ours)
    print(
        "storage: %d MB to a bucket: %.2f of the speed of aws s3 cp (%.1f s / %.1f s; at least %.1f); "
        "peak memory of either %d MB (at most %d)"
        % (size // 2**20, ratio, min(theirs), min(ours), SPEED, peak // 10**6, PEAK_BYTES // 10**6),
        flush=True,
    )
    return ratio >= SPEED and peak <= PEAK_BYTES


def main():
    """Print all; exit 1 if one is over its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if SERVER not in os.environ:
        print(f"storage: not measured: no S3 server, which .ci/storage starts and {SERVER} names")
        return 0
    with fresh_bucket() as bucket:
        held = file_beside_aws(bucket, QUICK_BYTES if arguments.quick else FILE_BYTES)
        if not arguments.quick:
            held = images(bucket) and held
    return int(not held)


@contextlib.contextmanager
def fresh_registry():
    """HOST:PORT of a registry that has nothing, so that the engine knows none of its layers; docker is logged in."""
    script = Path(__file__).parents[2] / ".ci" / "registry"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([script, "start", folder], check=True, stdout=subprocess.DEVNULL)
        try:
            told = Path(folder, "env").read_text(encoding="utf-8")
            host, user, password = (line.partition("=")[2] for line in told.splitlines())
            os.environ["DOCKER_CONFIG"] = folder
            login = ["docker", "login", "--username", user, "--password-stdin", host]
            subprocess.run(login, input=password.encode(), check=True, capture_output=True)
            yield host
        finally:
            subprocess.run([script, "stop", folder], check=True)


def flagbench(*words):
    """Run a command with --json; its seconds, peak memory and answer."""
    seconds, peak, printed = run(sys.executable, "-m", "flagbench", *words, "--json")
    return seconds, peak, json.loads(printed)


def docker_push():
    """The seconds of `docker push` to a registry that has nothing."""
    with fresh_registry() as host:
        name = f"{host}/flagbench/distilbert:cpu"
        subprocess.run(["docker", "tag", "flagbench/distilbert:cpu", name], check=True)
        os.sync()
        try:
            return run("docker", "push", "--quiet", name)[0]
        finally:
            subprocess.run(["docker", "rmi", "--no-prune", name], check=True, stdout=subprocess.DEVNULL)


def images(bucket):
    """Whether images go there as fast, and as rarely, as they should."""
    cases, to = ("distilbert:cpu", "glm:cpu"), ("--to", f"s3://{bucket}")
    with tempfile.TemporaryDirectory() as data, fresh_bucket() as other:
        os.environ["XDG_DATA_HOME"] = data
        flagbench("build", *cases)
        flagbench("push", cases[0], "--to", f"s3://{other}")  # normalises the image, which the engine keeps since
    ours, theirs = [], []
    for _ in range(IMAGE_ROUNDS):
        with tempfile.TemporaryDirectory() as data, fresh_bucket() as new:
            os.environ["XDG_DATA_HOME"] = data  # no push is remembered
            os.sync()  # the image that was loaded back is still on its way to the disk
            ours.append(flagbench("push", cases[0], "--to", f"s3://{new}")[0])
        theirs.append(docker_push())
    with tempfile.TemporaryDirectory() as data:
        os.environ["XDG_DATA_HOME"] = data
        _, peak, pushed = flagbench("push", cases[0], *to)
        again, _, repeated = flagbench("push", cases[0], *to)
        _, peak_of_second, second = flagbench("push", cases[1], *to)
    first, docker = min(ours), min(theirs)
    share = second["bytes_sent"] / pushed["bytes_sent"]
    sent_again = sum(blob["how"] != "present" for blob in repeated["blobs"])
    peak = max(peak, peak_of_second)
    print(
        "storage: image to a bucket: %.1f s, docker push %.1f s (at most as long); again %.2f s (at most %.0f), "
        "%d blobs sent (0); second case %.4f of the bytes (at most %.2f); peak memory %d MB (at most %d)"
        % (first, docker, again, REPUSH_SECONDS, sent_again, share, SECOND_CASE, peak // 10**6, PEAK_BYTES // 10**6)
    )
    held = first <= docker and again < REPUSH_SECONDS and not sent_again and share <= SECOND_CASE
    return held and peak <= PEAK_BYTES


if __name__ == "__main__":
    sys.exit(main())
