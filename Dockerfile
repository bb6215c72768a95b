# syntax=docker/dockerfile:1
# The shipped model, served with GLANCE: on a CPU, or on an NVIDIA GPU with DEVICE=cuda.
# `make check` lints this file; nobody has built an image from it yet.
#
#   docker build --tag glance .                                    # 8 GB
#   docker run --init --rm -p 127.0.0.1:30000:30000 glance
#
#   docker build --tag glance:cuda --build-arg DEVICE=cuda .       # 25 GB
#   docker run --init --rm -p 127.0.0.1:30000:30000 --gpus all --shm-size 8g glance:cuda
ARG DEVICE=cpu

FROM debian:bookworm-slim AS base-cpu
# The CUDA version that torch was built for; SGLang compiles some kernels with nvcc when it starts.
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04 AS base-cuda

# hadolint ignore=DL3006
FROM base-${DEVICE} AS glance
# The base's release fixes the packages' versions.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        ca-certificates curl g++ git make python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 10001 glance \
    && install --directory --owner=glance /opt/sglang-glance
USER 10001
WORKDIR /opt/sglang-glance
COPY --chown=10001 . .
ARG DEVICE
ENV DEVICE=${DEVICE}
RUN --mount=type=cache,target=/tmp/pip,uid=10001 PIP_CACHE_DIR=/tmp/pip make setup

EXPOSE 30000
STOPSIGNAL SIGINT
HEALTHCHECK --start-period=3m CMD ["curl", "--fail", "--silent", "http://127.0.0.1:30000/health"]
CMD ["make", "serve", "ARGS=--host 0.0.0.0"]
