{{- define "preflight-mnnvl.notes" -}}
Multi-node NVLink for Grove is installed in namespace {{ .Release.Namespace }} (mode {{ .Values.mode | default "driver" }}). See that it works:

  kubectl -n {{ .Release.Namespace }} rollout status deployment/{{ include "preflight-mnnvl.webhook" . }}
  kubectl -n {{ .Release.Namespace }} rollout status deployment/{{ include "preflight.fullname" (dict "root" . "name" "controller") }}
  kubectl get computedomains -A -l grove.io/mnnvl-managed=true

A PodCliqueSet asks for it by the annotation grove.io/mnnvl-enabled: "true". What becomes of one is shown by
`preflight-mnnvl explain -f pcs.yaml`, and what there is by `preflight-mnnvl show -n NAMESPACE`.
{{- end }}
