# Stands for NGC's PyTorch 22.04, with the nvcc that setups of packages ask for its version; Debian's is of CUDA 11.8.
FROM debian:bookworm-slim AS toolkit
RUN echo 'deb http://deb.debian.org/debian bookworm non-free' >/etc/apt/sources.list.d/non-free.list \
    && apt-get update -q \
    && cd /tmp \
    && apt-get download -q nvidia-cuda-toolkit \
    && dpkg-deb --fsys-tarfile nvidia-cuda-toolkit_*.deb | tar -x ./usr/lib/nvidia-cuda-toolkit/bin/nvcc

FROM flagbench-standin/python38
COPY --from=toolkit /tmp/usr/lib/nvidia-cuda-toolkit/bin/nvcc /usr/local/cuda/bin/nvcc
RUN /usr/local/cuda/bin/nvcc --version
