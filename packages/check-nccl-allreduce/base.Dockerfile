# The base of preflight-nccl-allreduce: the torch that uv.lock names, with its CUDA and NCCL, for BASE's own python3, all of it by hash from
# the Python index, which has it for amd64 and arm64. Build context: the repository's root. `nox -s images` calls this.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE}
COPY builder.txt pyproject.toml uv.lock /tmp/lock/
COPY packages/preflight-proto/pyproject.toml /tmp/lock/packages/preflight-proto/
COPY packages/check-nccl-allreduce/pyproject.toml /tmp/lock/packages/check-nccl-allreduce/
# The check's own packages come later, into an environment of its own; that one sees what is installed here.
RUN cd /tmp/lock \
 && python3 -m pip install --no-cache-dir --disable-pip-version-check --root-user-action=ignore --require-hashes --target /tmp/uv -r builder.txt \
 && /tmp/uv/bin/uv export --quiet --frozen --no-dev --no-emit-workspace --package check-nccl-allreduce --extra torch --output-file torch.txt \
 && /tmp/uv/bin/uv pip install --no-cache --system --break-system-packages --link-mode copy --require-hashes -r torch.txt \
 && rm -rf /tmp/lock /tmp/uv
