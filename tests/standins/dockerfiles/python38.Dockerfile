# Stands for NGC's PyTorch 22.04 and for MetaX's MACA 2.18: a Python 3.8 of its own at /opt/conda, with torch.
FROM debian:bookworm-slim
# What that Python was linked with; a real conda brings its own copies. The vendors' images have a compiler.
RUN apt-get update -q \
    && apt-get install -y -q --no-install-recommends g++ libbz2-1.0 libffi8 liblzma5 libssl3 zlib1g \
    && rm -rf /var/lib/apt/lists/*
COPY inputs/prefix /opt/conda
COPY inputs/packages /opt/conda/lib/python3.8/site-packages
# Without a list of its files (RECORD), as conda leaves some: pip cannot uninstall it.
RUN packages=/opt/conda/lib/python3.8/site-packages \
    && mkdir -p "$packages/yaml" "$packages/PyYAML-5.4.dist-info" \
    && echo '__version__ = "5.4"' >"$packages/yaml/__init__.py" \
    && printf 'Metadata-Version: 2.1\nName: PyYAML\nVersion: 5.4\n' >"$packages/PyYAML-5.4.dist-info/METADATA" \
    && echo conda >"$packages/PyYAML-5.4.dist-info/INSTALLER"
# The import as root leaves compiled modules behind, without which every process would compile torch anew.
RUN chmod 755 /opt/conda/bin/python3.8 \
    && ln -s python3.8 /opt/conda/bin/python3 \
    && echo /opt/conda/lib >/etc/ld.so.conf.d/conda.conf \
    && ldconfig \
    && /opt/conda/bin/python3 -c 'import pip, torch, torch.distributed.run'
ENV PATH=/opt/conda/bin:$PATH
