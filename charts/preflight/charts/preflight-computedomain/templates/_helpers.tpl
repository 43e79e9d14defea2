{{- define "preflight-computedomain.name" -}}
{{- .Values.fullnameOverride | default "preflight-computedomain" -}}
{{- end }}

{{- define "preflight-computedomain.controller" -}}
{{ include "preflight-computedomain.name" . }}-controller
{{- end }}

{{- define "preflight-computedomain.plugin" -}}
{{ include "preflight-computedomain.name" . }}-kubelet-plugin
{{- end }}

{{- define "preflight-computedomain.image" -}}
{{- $image := .Values.image | default dict -}}
{{- $repository := $image.repository | default "preflight-computedomain" -}}
{{ if $image.digest }}{{ printf "%s@%s" $repository $image.digest | quote }}{{ else }}{{ printf "%s:%s" $repository ($image.tag | default .Chart.AppVersion) | quote }}{{ end }}
{{- end }}

{{- define "preflight-computedomain.selector" -}}
app.kubernetes.io/name: preflight-computedomain
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Without the component, which each object says for itself. */}}
{{- define "preflight-computedomain.labels" -}}
{{ include "preflight-computedomain.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: preflight
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* A map of the values without the keys that somebody has set to null. */}}
{{- define "preflight-computedomain.set" -}}
{{- $set := dict -}}
{{- range $key, $value := . }}{{ if ne (kindOf $value) "invalid" }}{{ $_ := set $set $key $value }}{{ end }}{{ end -}}
{{- if $set -}}{{- toYaml $set -}}{{- end -}}
{{- end }}

{{- define "preflight-computedomain.on" -}}
{{- if dig "resources" "computeDomains" "enabled" true .Values.AsMap -}}yes{{- end -}}
{{- end }}

{{/* Whether IMEX is host-managed. As text: --set-string makes strings of the gates. */}}
{{- define "preflight-computedomain.hostManaged" -}}
{{- $gates := .Values.featureGates | default dict -}}
{{- $mode := dig "resources" "computeDomains" "imex" "mode" "" .Values.AsMap -}}
{{- if or (eq (toString (get $gates "HostManagedIMEX")) "true") (and (eq (toString (get $gates "HostManagedIMEXDaemon")) "true") (eq $mode "hostManaged")) -}}yes{{- end -}}
{{- end }}

{{/* The gates as they are in the values. */}}
{{- define "preflight-computedomain.gates" -}}
{{- $said := list -}}
{{- range $name, $value := .Values.featureGates | default dict -}}
{{- if ne (kindOf $value) "invalid" -}}{{- $said = append $said (printf "%s=%s" $name (toString $value)) -}}{{- end -}}
{{- end -}}
{{- join "," $said -}}
{{- end }}

{{/* Variables of both programs. */}}
{{- define "preflight-computedomain.env" -}}
- name: FEATURE_GATES
  value: {{ include "preflight-computedomain.gates" . | quote }}
{{- with dig "resources" "computeDomains" "imex" "mode" "" .Values.AsMap }}
- name: IMEX_MODE
  value: {{ . | quote }}
{{- end }}
{{- with dig "resources" "computeDomains" "imex" "isolation" "" .Values.AsMap }}
- name: IMEX_ISOLATION
  value: {{ . | quote }}
{{- end }}
- name: LOG_LEVEL
  value: {{ .Values.logLevel | default "info" | quote }}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- end }}

{{- define "preflight-computedomain.probes" -}}
ports:
  - name: metrics
    containerPort: 8080
startupProbe:
  httpGet:
    path: /healthz
    port: metrics
  periodSeconds: 1
  timeoutSeconds: 12
  failureThreshold: 60
livenessProbe:
  httpGet:
    path: /healthz
    port: metrics
  periodSeconds: 10
  timeoutSeconds: 12
  failureThreshold: 6
readinessProbe:
  httpGet:
    path: /readyz
    port: metrics
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end }}

{{/* Who may read metrics. Without a list: everybody but pods of the namespaces that are labelled to be checked. */}}
{{- define "preflight-computedomain.metricsFrom" -}}
{{- $unlabelled := dict "key" "nvsentinel.nvidia.com/preflight" "operator" "NotIn" "values" (list "enabled") -}}
{{- $default := list (dict "namespaceSelector" (dict "matchExpressions" (list $unlabelled))) -}}
{{- dig "networkPolicy" "metricsFrom" $default .Values.AsMap | toYaml -}}
{{- end }}

{{- define "preflight-computedomain.replicas" -}}
{{- dig "controller" "replicas" 2 .Values.AsMap -}}
{{- end }}
