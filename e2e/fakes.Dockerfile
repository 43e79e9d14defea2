# A check's image with the fake tools first on PATH. Build context: the repository's root. Never shipped.
ARG IMAGE
FROM ${IMAGE}
COPY e2e/fakes/bin /opt/fakes/bin
ENV PATH=/opt/fakes/bin:$PATH
