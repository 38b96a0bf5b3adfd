# Stands for a public MACA 3 image: an interpreter at /opt/conda that sees a torch it did not install itself.
FROM flagbench-standin/torch
RUN python3 -m venv --system-site-packages /opt/conda
ENV PATH=/opt/conda/bin:$PATH
