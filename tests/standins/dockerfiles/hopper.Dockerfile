# Stands for a current NGC PyTorch image: the system's Python with torch, and pip held to versions of the vendor's.
FROM flagbench-standin/torch
# Without a list of its files (RECORD), as Ubuntu 24.04's python3-yaml: pip cannot uninstall it.
RUN packages=/usr/lib/python3/dist-packages \
    && mkdir -p "$packages/yaml" "$packages/PyYAML-6.0.1.dist-info" \
    && echo '__version__ = "6.0.1"' >"$packages/yaml/__init__.py" \
    && printf 'Metadata-Version: 2.1\nName: PyYAML\nVersion: 6.0.1\n' >"$packages/PyYAML-6.0.1.dist-info/METADATA" \
    && echo debian >"$packages/PyYAML-6.0.1.dist-info/INSTALLER"
# Held to this file, pip would refuse every lock: these packages are in it at other versions.
RUN mkdir -p /etc/pip && printf '%s\n' 'safetensors==0.3.0' 'psutil==5.9.0' >/etc/pip/constraint.txt
ENV PIP_CONSTRAINT=/etc/pip/constraint.txt
