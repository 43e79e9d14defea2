# What the e2e puts its stand-ins for all-reduce on: torch for CPUs, with gloo and torchrun, from Debian, on BASE.
# The index of torch's own CPU builds is one that not every place may reach; Debian's mirrors are. Debian has it since its release 13,
# which BASE, where it is older, is brought to. `nox -s images` and `nox -s e2e` call this.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS base
# The authorities that the base trusts, where it has a file of them: a place may have one of its own, which Debian's package would drop.
RUN mkdir /authorities && if [ -e /etc/ssl/certs/ca-certificates.crt ]; then cp -L /etc/ssl/certs/ca-certificates.crt /authorities/; fi

FROM ${BASE}
ENV DEBIAN_FRONTEND=noninteractive
# Debian's libtorch is built without libuv, which torch's store asks for by default.
ENV USE_LIBUV=0
RUN printf 'path-exclude=/usr/share/%s/*\n' doc man locale > /etc/dpkg/dpkg.cfg.d/small \
 && printf 'path-exclude=/usr/lib/libtorch-test/*\n' >> /etc/dpkg/dpkg.cfg.d/small \
 && find /etc/apt -name '*.list' -o -name '*.sources' | xargs sed -i 's/bookworm/trixie/g' \
 && apt-get update -q \
 && apt-get dist-upgrade -y -q --no-install-recommends \
 && apt-get install -y -q --no-install-recommends ca-certificates python3 python3-venv python3-pip python3-torch \
 && apt-get autoremove -y -q && apt-get clean && rm -rf /var/lib/apt/lists/* \
 && rm -f /usr/lib/python3*/EXTERNALLY-MANAGED
# Two places of this torch overlook USE_LIBUV; and Debian's package has no torchrun. Each is proven to be there, or the build fails.
RUN cd /usr/lib/python3/dist-packages/torch/distributed \
 && sed -i 's/multi_tenant=True,/& use_libuv=False,/' elastic/rendezvous/static_tcp_rendezvous.py \
 && sed -i 's/is_master=False,/& use_libuv=False,/' rendezvous.py \
 && grep -q 'use_libuv=False' elastic/rendezvous/static_tcp_rendezvous.py && grep -q 'is_master=False, use_libuv=False' rendezvous.py \
 && printf '#!/bin/sh\nexec python3 -m torch.distributed.run "$@"\n' > /usr/local/bin/torchrun && chmod 0755 /usr/local/bin/torchrun \
 && for program in python pip; do ln -sf /usr/bin/${program}3 /usr/local/bin/$program; done \
 && python3 -c 'import torch.distributed as d; assert d.is_available() and d.is_gloo_available()'
COPY --from=base /authorities /authorities
RUN find /authorities -type f -exec cat {} + >> /etc/ssl/certs/ca-certificates.crt
