{{- define "preflight-gpu-scheduler.name" -}}
{{- .Values.fullnameOverride | default "preflight-gpu-scheduler" -}}
{{- end }}

{{- define "preflight-gpu-scheduler.image" -}}
{{- $image := .Values.image | default dict -}}
{{- $repository := $image.repository | default "preflight-gpu-scheduler" -}}
{{ if $image.digest }}{{ printf "%s@%s" $repository $image.digest | quote }}{{ else }}{{ printf "%s:%s" $repository ($image.tag | default .Chart.AppVersion) | quote }}{{ end }}
{{- end }}

{{- define "preflight-gpu-scheduler.selector" -}}
app.kubernetes.io/name: preflight-gpu-scheduler
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "preflight-gpu-scheduler.labels" -}}
{{ include "preflight-gpu-scheduler.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: preflight
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* A map of the values without the keys that somebody has set to null. */}}
{{- define "preflight-gpu-scheduler.set" -}}
{{- $set := dict -}}
{{- range $key, $value := . }}{{ if ne (kindOf $value) "invalid" }}{{ $_ := set $set $key $value }}{{ end }}{{ end -}}
{{- if $set -}}{{- toYaml $set -}}{{- end -}}
{{- end }}

{{/* Keys of the values that are the services' configuration; every other key says how they are deployed. */}}
{{- define "preflight-gpu-scheduler.config" -}}
{{- $own := dict -}}
{{- range $key, $value := pick .Values "bindBudget" "countResource" "devicePlugin" "gangBind" "gangPatience" "gpuClasses" "guardOthers" "heartbeat" "lockNamespace"
    "logLevel" "missingClaim" "missingNodeStatus" "nodeConditions" "reservationSeconds" "schedulerName" "staleAfter" "sweep" -}}
{{- if not (kindIs "invalid" $value) -}}{{- $_ := set $own $key $value -}}{{- end -}}
{{- end -}}
{{- $shared := ((.Values.global).preflight).sickNodeConditions -}}
{{- if not (kindIs "invalid" $shared) -}}{{- $_ := set $own "nodeConditions" $shared -}}{{- end -}}
{{- toYaml $own -}}
{{- end }}

{{- define "preflight-gpu-scheduler.lockNamespace" -}}
{{- .Values.lockNamespace | default "gpu-scheduler-leases" -}}
{{- end }}

{{/* Seconds of a Go duration that the schema has let pass. */}}
{{- define "preflight-gpu-scheduler.seconds" -}}
{{- $units := dict "ns" 1e-9 "us" 1e-6 "µs" 1e-6 "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 -}}
{{- $sum := 0.0 -}}
{{- range regexFindAll `[0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h)` . -1 -}}
{{- $unit := regexFind `[a-zµ]+$` . -}}
{{- $sum = addf $sum (mulf (trimSuffix $unit . | float64) (get $units $unit)) -}}
{{- end -}}
{{- $sum -}}
{{- end }}

{{/* The counted resource; empty where nothing is counted. Null is the services' own default, as for every key. */}}
{{- define "preflight-gpu-scheduler.count" -}}
{{- if kindIs "invalid" .Values.countResource -}}gpu.scheduling/gpu{{- else -}}{{- .Values.countResource -}}{{- end -}}
{{- end }}

{{/* The Secret with the webhook's certificate; and whether we keep it. */}}
{{- define "preflight-gpu-scheduler.secret" -}}
{{- (.Values.certificates).secretName | default (printf "%s-tls" (include "preflight-gpu-scheduler.name" .)) -}}
{{- end }}

{{- define "preflight-gpu-scheduler.selfManaged" -}}
{{- if dig "certificates" "selfManaged" true .Values.AsMap -}}yes{{- end -}}
{{- end }}

{{/* One of our accounts as the API server knows it; a list of (root, part). */}}
{{- define "preflight-gpu-scheduler.user" -}}
{{- $root := index . 0 -}}
{{ printf "system:serviceaccount:%s:%s-%s" $root.Release.Namespace (include "preflight-gpu-scheduler.name" $root) (index . 1) }}
{{- end }}

{{- define "preflight-gpu-scheduler.metricsFrom" -}}
{{- $unlabelled := dict "key" "nvsentinel.nvidia.com/preflight" "operator" "NotIn" "values" (list "enabled") -}}
{{- $default := list (dict "namespaceSelector" (dict "matchExpressions" (list $unlabelled))) -}}
{{- dig "networkPolicy" "metricsFrom" $default .Values.AsMap | toYaml -}}
{{- end }}

{{/* What all our pods have; a list of (root, part). */}}
{{- define "preflight-gpu-scheduler.pod" -}}
{{- $root := index . 0 -}}
{{- $part := index . 1 -}}
serviceAccountName: {{ include "preflight-gpu-scheduler.name" $root }}-{{ $part }}
automountServiceAccountToken: true
{{- with $root.Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
terminationGracePeriodSeconds: 30
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "preflight-gpu-scheduler.set" $root.Values.podSecurityContext }}
securityContext:
  {{- . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What each container of our image has. */}}
{{- define "preflight-gpu-scheduler.container" -}}
image: {{ include "preflight-gpu-scheduler.image" . }}
{{- with .Values.imagePullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- with include "preflight-gpu-scheduler.set" .Values.securityContext }}
securityContext:
  {{- . | nindent 2 }}
{{- end }}
{{- with .Values.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
env:
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  - name: POD_NAMESPACE
    valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
  - name: NODE_NAME
    valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{- end }}

{{- define "preflight-gpu-scheduler.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end }}

{{/* Where replicas run; a list of (root, part). */}}
{{- define "preflight-gpu-scheduler.placement" -}}
{{- $root := index . 0 -}}
{{- $part := index . 1 -}}
topologySpreadConstraints:
  - topologyKey: kubernetes.io/hostname
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    matchLabelKeys: [pod-template-hash]
    labelSelector:
      matchLabels:
        {{- include "preflight-gpu-scheduler.selector" $root | nindent 8 }}
        app.kubernetes.io/component: {{ $part }}
{{- with $root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
