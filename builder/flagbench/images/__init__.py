"""Images: rendered from templates, with locked packages, built by an engine, and pushed to a registry or a bucket.

render/            the Dockerfile of a stack and of a case, and their build directories
lock.py            the packages and the base of a stack, from uv and the base's registry
lockfile.py        the file of a lock
build.py           both tiers of an image, unless they are up to date
build_options.py   the options of a build
tags.py            tags, labels and context digest of an image
push.py, pull.py   to a registry or a bucket, and from a bucket
bucket.py          addresses and keys of images in a bucket
docker.py          the engine, and the command lines given to docker
docker_*.py        its command, its errors, its API, its archives
"""
