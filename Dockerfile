# The command `viva` with models in its own process.
#
#   docker build -t viva .
#   docker run --rm -v viva-runs:/data viva          # the demo; the run's folder is in the volume
#   docker run --rm -v viva-runs:/data -e OPENAI_API_KEY viva run kieval …
#
# With CUDA: --build-arg BUILD_BASE=nvidia/cuda:12.8.1-devel-ubuntu24.04
#            --build-arg BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04 --build-arg CMAKE_ARGS=-DGGML_CUDA=ON
# Both bases need the same Debian or Ubuntu release, because the environment uses its Python.
ARG BASE=debian:bookworm-slim
ARG BUILD_BASE=${BASE}

FROM ${BUILD_BASE} AS build
ARG CMAKE_ARGS=""
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential ca-certificates cmake python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# Not for the processor of the building machine alone: x86-64 with AVX2, or any ARMv8.
RUN CMAKE_ARGS="-DGGML_NATIVE=OFF ${CMAKE_ARGS}" make install PREFIX=/opt/viva

FROM ${BASE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libgomp1 libstdc++6 python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 viva \
    && install --directory --owner=viva --group=viva /data
COPY --from=build /opt/viva /opt/viva
ENV PATH=/opt/viva/bin:$PATH
# A number, so that Kubernetes can check that it is not root.
USER 10001
WORKDIR /data
VOLUME /data
ENTRYPOINT ["viva"]
CMD ["demo"]
