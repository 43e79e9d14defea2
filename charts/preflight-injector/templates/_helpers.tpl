{{- define "preflight-injector.name" -}}
{{- .Values.fullnameOverride | default "preflight-injector" -}}
{{- end }}

{{- define "preflight-injector.selector" -}}
app.kubernetes.io/name: preflight-injector
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "preflight-injector.labels" -}}
{{ include "preflight-injector.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: preflight
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "preflight-injector.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
{{- end }}

{{- define "preflight-injector.secret" -}}
{{- .Values.certificates.secretName | default (printf "%s-tls" (include "preflight-injector.name" .)) -}}
{{- end }}

{{/* The webhook's configuration file: all values that do not say how the chart itself is deployed. */}}
{{- define "preflight-injector.config" -}}
{{- $own := omit .Values "enabled" "global" "namespaces" "excludeNamespaces" "webhook" "certificates" "fullnameOverride" "image"
    "imagePullPolicy" "imagePullSecrets" "replicas" "logLevel" "resources" "nodeSelector" "tolerations" "affinity"
    "priorityClassName" "podAnnotations" "podLabels" | deepCopy -}}
{{- with (.Values.global).preflight -}}
{{- with .gangSources }}{{ $_ := set $own.gangDiscovery "sources" (concat ($own.gangDiscovery.sources | default list) .) }}{{ end -}}
{{- with .instanceTypeLabel }}{{ $_ := set $own.ncclTopology "instanceTypeLabel" . }}{{ end -}}
{{- end -}}
{{- toYaml $own -}}
{{- end }}

{{/* Whether the webhook has to ask the API server for the claims of pods: where device classes are configured. */}}
{{- define "preflight-injector.asksForClaims" -}}
{{- if or .Values.gpuDetection.deviceClasses .Values.networkDetection.deviceClasses -}}yes{{- end -}}
{{- end }}

{{/* Whether it has to ask it for anything. */}}
{{- define "preflight-injector.asks" -}}
{{- if or (include "preflight-injector.asksForClaims" .) .Values.preflightConfigs.enabled -}}yes{{- end -}}
{{- end }}

{{/* Namespaces that no entry may select. */}}
{{- define "preflight-injector.excluded" -}}
{{- prepend .Values.excludeNamespaces .Release.Namespace | uniq | sortAlpha | toYaml -}}
{{- end }}

{{- define "preflight-injector.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "preflight-injector.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Pod template of the job that keeps the certificate: the same for the install and for the schedule. */}}
{{- define "preflight-injector.certsPod" -}}
metadata:
  labels:
    {{- include "preflight-injector.labels" . | nindent 4 }}
    app.kubernetes.io/component: certs
spec:
  serviceAccountName: {{ include "preflight-injector.name" . }}-certs
  restartPolicy: OnFailure
  priorityClassName: {{ .Values.priorityClassName | quote }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "preflight-injector.podSecurityContext" . | nindent 4 }}
  containers:
    - name: certs
      image: {{ include "preflight-injector.image" . }}
      imagePullPolicy: {{ .Values.imagePullPolicy }}
      args:
        - certs
        - --namespace={{ .Release.Namespace }}
        - --service={{ include "preflight-injector.name" . }}
        - --secret={{ include "preflight-injector.secret" . }}
        - --webhook-configuration={{ include "preflight-injector.name" . }}
        - --lifetime-days={{ .Values.certificates.lifetimeDays }}
        - --wait-seconds=120
      securityContext:
        {{- include "preflight-injector.securityContext" . | nindent 8 }}
      resources:
        requests:
          cpu: 50m
          memory: 48Mi
        limits:
          memory: 128Mi
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
