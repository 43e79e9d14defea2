# The base of preflight-nccl-loopback: all_reduce_perf of nccl-tests, compiled here, with the NCCL that runs it, on BASE.
# Build context: the repository's root; named context `nccl-tests`: its source, of the commit that pyproject.toml beside it names. NVIDIA's compiler
# and NCCL come as packages of the Python index, so no vendor's image is needed. `nox -s images` calls this.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS compiler
RUN apt-get update -q && apt-get install -y -q --no-install-recommends g++ make && rm -rf /var/lib/apt/lists/*
COPY builder.txt pyproject.toml uv.lock /tmp/lock/
COPY packages/check-nccl-loopback/pyproject.toml /tmp/lock/packages/check-nccl-loopback/
COPY packages/preflight-proto/pyproject.toml /tmp/lock/packages/preflight-proto/
RUN cd /tmp/lock \
 && python3 -m pip install --no-cache-dir --disable-pip-version-check --root-user-action=ignore --require-hashes --target /tmp/uv -r builder.txt \
 && /tmp/uv/bin/uv export --quiet --frozen --no-emit-workspace --package check-nccl-loopback --only-group tool --only-group tool-build \
    --output-file tool.txt \
 && /tmp/uv/bin/uv pip install --no-cache --target /opt/cuda --require-hashes --no-deps -r tool.txt \
 && rm -rf /tmp/lock /tmp/uv
# The packages have no names without a version, which the linker looks for.
RUN cd /opt/cuda/nvidia/cu13 && ln -s libcudart.so.13 lib/libcudart.so && ln -s lib lib64 \
 && cd ../nccl/lib && ln -s libnccl.so.2 libnccl.so
COPY --from=nccl-tests . /opt/nccl-tests
# A cubin runs on later GPUs of its major version (8.0 on 8.6 and 8.9, 10.0 on 10.3); the PTX is for GPUs still to come.
ARG ARCHITECTURES="75 80 90 100 120"
RUN gencode="" && for a in ${ARCHITECTURES}; do gencode="$gencode -gencode=arch=compute_$a,code=sm_$a"; done \
 && gencode="$gencode -gencode=arch=compute_$a,code=compute_$a" \
 && make -C /opt/nccl-tests/src -j"$(nproc)" CUDA_HOME=/opt/cuda/nvidia/cu13 NCCL_HOME=/opt/cuda/nvidia/nccl \
    NVCC_GENCODE="$gencode" BUILDDIR=/opt/build /opt/build/all_reduce_perf \
 && strip /opt/build/all_reduce_perf \
 && mkdir -p /opt/tool/bin /opt/tool/lib \
 && cp /opt/build/all_reduce_perf /opt/tool/bin/ \
 && cp -L /opt/cuda/nvidia/nccl/lib/libnccl.so.2 /opt/cuda/nvidia/cu13/lib/libcudart.so.13 /opt/tool/lib/ \
 && strip --strip-unneeded /opt/tool/lib/*

FROM ${BASE}
COPY --from=compiler /opt/tool /opt/tool
ENV PATH=/opt/tool/bin:$PATH LD_LIBRARY_PATH=/opt/tool/lib
