# The stock kube-scheduler as its own image has it: one static program and nothing else. Build context: a folder with kube-scheduler.
FROM scratch
COPY kube-scheduler /usr/local/bin/kube-scheduler
ENV PATH=/usr/local/bin
ENTRYPOINT ["kube-scheduler"]
