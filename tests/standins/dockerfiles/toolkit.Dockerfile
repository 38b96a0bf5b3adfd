# Stands for nvidia/cuda:11.8.0-devel: the layout of its toolkit, in which nvcc alone is real; Debian's is of CUDA 11.8.
FROM flagbench-standin/cuda AS toolkit

FROM debian:bookworm-slim
COPY --from=toolkit /usr/local/cuda/bin/nvcc /usr/local/cuda-11.8/bin/nvcc
RUN cd /usr/local/cuda-11.8 \
    && mkdir -p bin/crt nvvm/bin nvvm/libdevice targets/x86_64-linux/include targets/x86_64-linux/lib \
    && touch bin/bin2c bin/cudafe++ bin/fatbinary bin/nvcc.profile bin/nvlink bin/ptxas \
    && touch targets/x86_64-linux/include/cusparse.h targets/x86_64-linux/lib/libcublas.so \
    && touch targets/x86_64-linux/lib/libcudadevrt.a targets/x86_64-linux/lib/libcudart_static.a \
    && touch targets/x86_64-linux/lib/libcudart.so.11.0 \
    && ln -s libcudart.so.11.0 targets/x86_64-linux/lib/libcudart.so \
    && ln -s targets/x86_64-linux/include include \
    && ln -s targets/x86_64-linux/lib lib64 \
    && ln -s cuda-11.8 /usr/local/cuda
