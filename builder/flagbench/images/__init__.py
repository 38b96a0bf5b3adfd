"""Images: rendered from templates, with locked packages, built by an engine, and pushed to a registry or a bucket.

render/            the Dockerfile of a stack and of a case, and their build directories
lock.py            what a stack is made of, found out by uv and the base's registry
lockfile.py        the file of a lock
build.py           both tiers of an image; what is up to date is not built again
build_options.py   what a build is given
tags.py            tags, labels and context digest of an image
push.py, pull.py   to a registry or a bucket, and from a bucket
bucket.py          addresses and keys of images in a bucket
docker.py          the engine, and the command lines given to docker
docker_*.py        its command, its errors, its API, its archives
"""
