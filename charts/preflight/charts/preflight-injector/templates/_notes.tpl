{{- define "preflight-injector.notes" -}}
{{- $names := include "preflight-injector.checkNames" . | fromJsonArray -}}
Preflight's injector is installed in namespace {{ .Release.Namespace }}.

GPU pods are checked in namespaces labelled nvsentinel.nvidia.com/preflight=enabled
{{- with .Values.namespaces }}, and in: {{ join ", " . }}{{ end }}. Their checks: {{ join ", " $names | default "none" }}.

  kubectl label namespace NAMESPACE nvsentinel.nvidia.com/preflight=enabled    # opt in
  kubectl label namespace NAMESPACE nvsentinel.nvidia.com/preflight=disabled   # switch off, whatever is configured

What the checks need on every GPU node:
{{- if dig "platformConnector" "enabled" true .Values.AsMap }}

  - NVSentinel's platform connector, with its socket in {{ include "preflight-injector.socketDir" . }}: it takes what the checks report.
{{- end }}
{{- if has "dcgm-diag" $names }}
  - a DCGM hostengine that answers at {{ include "preflight-injector.engines" . | fromJsonArray | join " or " }}: dcgm-diag asks it.
{{- end }}
  - the checks' images, which the node pulls with imagePullSecrets of the pod and checkImagePullSecrets.

{{- if include "preflight.selfManaged" . }}

Admission is ready when the certificate is published and the replicas are up:

  kubectl -n {{ .Release.Namespace }} wait --for=condition=complete job -l app.kubernetes.io/instance={{ .Release.Name }},app.kubernetes.io/component=certs
  kubectl -n {{ .Release.Namespace }} rollout status deployment/{{ include "preflight.name" . }}
{{- end }}

See that it works: in a namespace that is opted in this prints the checks that a GPU pod would get, and creates nothing.

  kubectl -n NAMESPACE run probe --image=none --dry-run=server -o jsonpath='{.spec.initContainers[*].name}{"\n"}' \
    --overrides='{"spec":{"containers":[{"name":"probe","image":"none","resources":{"limits":{"{{ dig "gpuDetection" "resourceNames" (list "nvidia.com/gpu") .Values.AsMap | default (list "nvidia.com/gpu") | first }}":"1"}}}]}}'
{{- if eq (include "preflight-injector.failurePolicy" .) "Fail" }}

failurePolicy is Fail: while no replica answers, no pod is created in those namespaces.
{{- end }}

Admission policies protect the checks. When a request is refused, its error message says why. List them:

  kubectl get validatingadmissionpolicies -l app.kubernetes.io/name=preflight-injector,app.kubernetes.io/instance={{ .Release.Name }}
{{- if dig "networkPolicy" "enabled" true .Values.AsMap }}

Where the cluster enforces NetworkPolicies, metrics are read by whom networkPolicy.metricsFrom names (namespaces that are not labelled, by default).
{{- end }}
{{- end }}
