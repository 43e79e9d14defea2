# The fakes on top of a check's image: first on PATH, and nothing else.
ARG IMAGE
FROM ${IMAGE}
COPY e2e/fakes/bin /opt/fakes/bin
ENV PATH=/opt/fakes/bin:$PATH
