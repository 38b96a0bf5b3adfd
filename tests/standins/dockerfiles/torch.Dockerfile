# What the stand-ins of newer bases share: Debian's Python 3.11 with its headers, a compiler, and a
# torch for processors, installed once.
FROM debian:bookworm-slim
RUN apt-get update -q \
    && apt-get install -y -q --no-install-recommends g++ python3-dev python3-pip python3-venv \
    && rm -rf /var/lib/apt/lists/*
COPY inputs/packages /usr/local/lib/python3.11/dist-packages
# The import as root leaves compiled modules behind, without which every process would compile torch anew; the first
# optimizer imports torch._dynamo.
RUN python3 -c 'import pip, torch, torch.distributed.run, torch._dynamo'
