# The image of a service: MEMBER is its folder under packages/, and the name of its program. What it may build on of ours is preflight-proto
# and preflight-kube. Build context: the repository's root. Any image with Python 3.11 or newer can stand in as BASE. `nox -s images` calls this.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
ENV UV_PROJECT_ENVIRONMENT=/opt/venv UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy UV_NO_CACHE=1
COPY builder.txt /tmp/
RUN pip install --no-cache-dir --disable-pip-version-check --root-user-action=ignore --require-hashes -r /tmp/builder.txt
WORKDIR /workspace
ARG MEMBER
# What others made first: it changes with the lock, not with our code.
COPY pyproject.toml uv.lock ./
COPY packages/preflight-proto/pyproject.toml packages/preflight-proto/
COPY packages/preflight-kube/pyproject.toml packages/preflight-kube/
COPY packages/${MEMBER}/pyproject.toml packages/${MEMBER}/
RUN uv sync --frozen --no-dev --no-install-workspace --all-extras --package "${MEMBER}"
COPY packages/preflight-proto packages/preflight-proto
COPY packages/preflight-kube packages/preflight-kube
COPY packages/${MEMBER} packages/${MEMBER}
RUN uv sync --frozen --no-dev --no-editable --all-extras --package "${MEMBER}" && test -x "/opt/venv/bin/${MEMBER}"
# The same commit gives the same bytes: uv notes when it built what is ours, and bytecode must neither hold nor depend on times and order.
RUN find /opt/venv -name uv_cache.json -delete && sed -i '/\/uv_cache.json,/d' /opt/venv/lib/python*/site-packages/*.dist-info/RECORD \
    && PYTHONHASHSEED=0 /opt/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/venv/lib

FROM ${BASE}
ARG MEMBER
ARG DESCRIPTION
LABEL org.opencontainers.image.title="${MEMBER}" \
      org.opencontainers.image.description="${DESCRIPTION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PREFLIGHT_PROGRAM=${MEMBER}
USER 65532:65532
# The list form takes no build argument; the shell gives its place to the program, which so has the name and the signals of process 1.
ENTRYPOINT ["sh", "-c", "exec \"$PREFLIGHT_PROGRAM\" \"$@\"", "preflight"]
