{{- define "preflight-appwrapper.controller-rules" -}}
{{- /* Their status and their finalizer; policies.yaml takes away all else of a patch. */ -}}
- apiGroups: [workload.codeflare.dev]
  resources: [appwrappers]
  verbs: [get, list, watch, patch]
- apiGroups: [workload.codeflare.dev]
  resources: [appwrappers/status]
  verbs: [update]
{{- /* Components name their wrapper as an owner that waits for them, which takes this right. */}}
- apiGroups: [workload.codeflare.dev]
  resources: [appwrappers/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
{{- range .Values.wrappedKinds }}
- apiGroups: [{{ .group | quote }}]
  resources: {{ .resources | toJson }}
  verbs: [get, list, watch, create, delete]
{{- end }}
{{- if include "preflight-appwrapper.monitors" . }}
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch]
{{- end }}
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}

{{- define "preflight-appwrapper.labeler-rules" -}}
{{- /* RBAC knows no smaller right than `patch`; policies.yaml takes away all but one label. */ -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}

{{- define "preflight-appwrapper.webhook-rules" -}}
{{- /* Whether whoever creates a wrapper may create its components. What is served, everybody may ask. */ -}}
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
{{- end }}
