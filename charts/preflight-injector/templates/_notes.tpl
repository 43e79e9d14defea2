{{- define "preflight-injector.notes" -}}
Preflight's injector is installed in namespace {{ .Release.Namespace }}.

GPU pods are checked in namespaces labelled nvsentinel.nvidia.com/preflight=enabled
{{- with .Values.namespaces }}, and in: {{ join ", " . }}{{ end }}.

  kubectl label namespace NAMESPACE nvsentinel.nvidia.com/preflight=enabled    # opt in
  kubectl label namespace NAMESPACE nvsentinel.nvidia.com/preflight=disabled   # switch off, whatever is configured

{{- if .Values.certificates.selfManaged }}

Admission is ready when the certificate is published and the replicas are up:

  kubectl -n {{ .Release.Namespace }} wait --for=condition=complete job -l app.kubernetes.io/instance={{ .Release.Name }},app.kubernetes.io/component=certs
  kubectl -n {{ .Release.Namespace }} rollout status deployment/{{ include "preflight-injector.name" . }}
{{- end }}
{{- if eq .Values.webhook.failurePolicy "Fail" }}

failurePolicy is Fail: while no replica answers, no pod is created in those namespaces.
{{- end }}
{{- end }}
