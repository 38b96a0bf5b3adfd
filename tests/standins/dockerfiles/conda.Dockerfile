# Stands for a public MACA 3 image: an interpreter at /opt/conda that sees a torch it did not install itself.
FROM flagbench-standin/torch
RUN python3 -m venv --system-site-packages /opt/conda
# Without a list of its files (RECORD), as conda leaves some: pip cannot uninstall it.
RUN packages=/opt/conda/lib/python3.11/site-packages \
    && mkdir -p "$packages/yaml" "$packages/PyYAML-5.4.dist-info" \
    && echo '__version__ = "5.4"' >"$packages/yaml/__init__.py" \
    && printf 'Metadata-Version: 2.1\nName: PyYAML\nVersion: 5.4\n' >"$packages/PyYAML-5.4.dist-info/METADATA" \
    && echo conda >"$packages/PyYAML-5.4.dist-info/INSTALLER"
ENV PATH=/opt/conda/bin:$PATH
