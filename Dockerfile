# An image of the package whose entry point is its command. It is built only if the whole test suite passes in it.
#
# For NVIDIA GPUs, and for the CPU only:
#
#   docker build -t rvtssm .
#   docker run --rm --gpus all --ipc=host -v "$PWD/outputs:/rvtssm/outputs" rvtssm demo out=outputs/demo
#
#   docker build -t rvtssm:cpu --build-arg BASE=ubuntu:24.04 --build-arg RVTSSM_TORCH=cpu .
#   docker run --rm --ipc=host -v "$PWD/outputs:/rvtssm/outputs" rvtssm:cpu demo out=outputs/demo
#
# For 64-bit ARM, on such a machine or emulated by QEMU, where the suite would take hours (CHECK is what runs instead):
#
#   docker buildx build --platform linux/arm64 -t rvtssm:arm64 --build-arg BASE=ubuntu:24.04 \
#       --build-arg RVTSSM_TORCH=cpu --build-arg EXTRAS="tracks bags export" --build-arg CHECK="rvtssm doctor" .
ARG BASE=nvidia/cuda:13.0.1-base-ubuntu24.04
FROM $BASE
ARG RVTSSM_TORCH=
ARG EXTRAS=dev
ARG CHECK="bash scripts/test.sh"

# A compiler and the headers of Python are needed because Triton builds a small launcher for every kernel, libGL and glib
# because the package trackers brings OpenCV with windows.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        gcc git libc6-dev libgl1 libglib2.0-0t64 python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /rvtssm
ENV PATH=/rvtssm/.venv/bin:$PATH PIP_NO_CACHE_DIR=1
ENTRYPOINT ["rvtssm"]

# The dependencies are a layer of their own, which is built again only if they change.
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY configs configs
COPY rvtssm/__init__.py rvtssm/__init__.py
COPY scripts/install.sh scripts/install.sh
RUN bash scripts/install.sh $EXTRAS

COPY . .
RUN $CHECK
