# Stands for a current NGC PyTorch image: the system's Python with torch, and pip held to versions of the vendor's.
FROM flagbench-standin/torch
# Held to this file, pip would refuse every lock: these packages are in it at other versions.
RUN mkdir -p /etc/pip && printf '%s\n' 'safetensors==0.3.0' 'psutil==5.9.0' >/etc/pip/constraint.txt
ENV PIP_CONSTRAINT=/etc/pip/constraint.txt
