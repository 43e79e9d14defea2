# The base of preflight-dcgm-diag: DCGM's client of two generations, compiled here, on BASE. `dcgmi` is the newer; `dcgmi3`, of 3.3.1, speaks
# with engines from 3.3.1 on. Only the client and the library that it loads: no engine, no diagnostic and no CUDA, all of which the node has.
# Build context: the repository's root; named contexts: sources of the commits that pyproject.toml beside it names. `nox -s images` calls this.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS compiler
RUN apt-get update -q \
 && apt-get install -y -q --no-install-recommends g++ make libboost1.81-dev libevent-dev libfmt-dev libjsoncpp-dev libyaml-cpp-dev \
 && rm -rf /var/lib/apt/lists/*
COPY packages/check-dcgm/dcgm /opt/dcgm
COPY --from=plog . /opt/plog
COPY --from=tclap . /opt/tclap
COPY --from=fmt . /opt/fmt
ENV HEADERS="/opt/plog/include /opt/tclap/include"
COPY --from=dcgm-4 . /opt/dcgm-4
ARG DCGM_4_VERSION
ARG DCGM_4_COMMIT
RUN make -f /opt/dcgm/client.mk -j"$(nproc)" SOURCE=/opt/dcgm-4 FMT=/opt/fmt OUT=/opt/made/4 VERSION="${DCGM_4_VERSION}" COMMIT="${DCGM_4_COMMIT}"
COPY --from=dcgm-3 . /opt/dcgm-3
ARG DCGM_3_VERSION
ARG DCGM_3_COMMIT
RUN make -f /opt/dcgm/client.mk -j"$(nproc)" SOURCE=/opt/dcgm-3 OUT=/opt/made/3 VERSION="${DCGM_3_VERSION}" COMMIT="${DCGM_3_COMMIT}"
# What they load of Debian's goes with each: they look for it in ../lib first.
RUN for g in 3 4; do \
      strip /opt/made/$g/bin/dcgmi /opt/made/$g/lib/* && mkdir -p /opt/tool/$g && cp -r /opt/made/$g/bin /opt/made/$g/lib /opt/tool/$g/ \
      && cp -L $(ldd /opt/made/$g/bin/dcgmi /opt/made/$g/lib/* | grep -oE '/[^ ]*/lib(event|jsoncpp|yaml)[^ ]*' | sort -u) /opt/tool/$g/lib/; \
    done \
 && mkdir /opt/tool/bin && ln -s ../4/bin/dcgmi /opt/tool/bin/dcgmi && ln -s ../3/bin/dcgmi /opt/tool/bin/dcgmi3

FROM ${BASE}
COPY --from=compiler /opt/tool /opt/tool
ENV PATH=/opt/tool/bin:$PATH
