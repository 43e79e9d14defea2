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
{{- range include "preflight-appwrapper.wrapped" . | fromJsonArray }}
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

{{- define "preflight-appwrapper.certs-rules" -}}
- apiGroups: [admissionregistration.k8s.io]
  resources: [mutatingwebhookconfigurations, validatingwebhookconfigurations]
  verbs: [get, patch]
  resourceNames: [{{ include "preflight-appwrapper.configuration" . }}]
{{- end }}

{{- define "preflight-appwrapper.certs-pod" -}}
metadata:
  labels:
    {{- include "preflight-appwrapper.labels" . | nindent 4 }}
    app.kubernetes.io/component: certs
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "preflight-appwrapper.name" . }}-certs
  automountServiceAccountToken: true
  restartPolicy: OnFailure
  {{- include "preflight-appwrapper.pod-where" . | nindent 2 }}
  containers:
    - name: certs
      image: {{ include "preflight-appwrapper.image" . }}
      {{- with .Values.imagePullPolicy }}
      imagePullPolicy: {{ . }}
      {{- end }}
      args:
        - certs
        - --namespace={{ .Release.Namespace }}
        - --service={{ include "preflight-appwrapper.name" . }}-webhook
        - --secret={{ include "preflight-appwrapper.secret" . }}
        - --mutating={{ include "preflight-appwrapper.configuration" . }}
        - --validating={{ include "preflight-appwrapper.configuration" . }}
        - --lifetime-days={{ dig "certificates" "lifetimeDays" 90 .Values.AsMap }}
        - --wait-seconds=120
      {{- with include "preflight-appwrapper.set" .Values.securityContext }}
      securityContext:
        {{- . | nindent 8 }}
      {{- end }}
      resources:
        requests:
          cpu: 50m
          memory: 48Mi
          ephemeral-storage: "0"
        limits:
          memory: 128Mi
          ephemeral-storage: 256Mi
{{- end }}
