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
{{- $image := .Values.image | default dict -}}
{{- $repository := $image.repository | default "preflight-webhook" -}}
{{ if $image.digest }}{{ printf "%s@%s" $repository $image.digest | quote }}{{ else }}{{ printf "%s:%s" $repository ($image.tag | default .Chart.AppVersion) | quote }}{{ end }}
{{- end }}

{{- define "preflight-injector.secret" -}}
{{- (.Values.certificates).secretName | default (printf "%s-tls" (include "preflight-injector.name" .)) -}}
{{- end }}

{{/* The webhook's configuration file: all values that do not say how the chart itself is deployed. */}}
{{- define "preflight-injector.config" -}}
{{- $own := omit .Values "enabled" "global" "namespaces" "excludeNamespaces" "webhook" "certificates" "fullnameOverride" "image"
    "imagePullPolicy" "imagePullSecrets" "replicas" "logLevel" "resources" "nodeSelector" "tolerations" "affinity"
    "priorityClassName" "podAnnotations" "podLabels" "podSecurityContext" "securityContext" "protection" "networkPolicy"
    "allowSecondRelease" "gangController" | deepCopy -}}
{{- include "preflight-injector.prune" $own -}}
{{- with (.Values.global).preflight -}}
{{- with .gangSources -}}
{{- $discovery := $own.gangDiscovery | default dict -}}
{{- $_ := set $own "gangDiscovery" (set $discovery "sources" (concat ($discovery.sources | default list) .)) -}}
{{- end -}}
{{- with .networkDeviceClasses -}}
{{- $network := $own.networkDetection | default dict -}}
{{- $_ := set $own "networkDetection" (set $network "deviceClasses" (concat ($network.deviceClasses | default list) . | uniq)) -}}
{{- end -}}
{{- with .gpuClaimResource -}}
{{- $detection := $own.gpuDetection | default dict -}}
{{- $_ := set $own "gpuDetection" (set $detection "resourceNames" (append ($detection.resourceNames | default (list "nvidia.com/gpu")) . | uniq)) -}}
{{- $_ := set $own "deviceVariables" (merge ($own.deviceVariables | default dict) (dict "enabled" true "resourceName" .)) -}}
{{- end -}}
{{- with .instanceTypeLabel }}{{ $_ := set $own "ncclTopology" (set ($own.ncclTopology | default dict) "instanceTypeLabel" .) }}{{ end -}}
{{- end -}}
{{- include "preflight-injector.chooseChecks" (dict "root" . "into" $own) -}}
{{- toYaml $own -}}
{{- end }}

{{/* Takes from a map, and from the maps in it, the keys that somebody has set to null: the service's default applies to them. */}}
{{- define "preflight-injector.prune" -}}
{{- range $key, $value := . -}}
{{- if kindIs "invalid" $value -}}{{- $_ := unset $ $key -}}
{{- else if kindIs "map" $value -}}{{- include "preflight-injector.prune" $value -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/*
Sets `checks` of the map `into`: this chart's own, else those that all charts share, else dcgm-diag. In `container` and `securityContext` of a
check null is a word of its own and stays.
*/}}
{{- define "preflight-injector.chooseChecks" -}}
{{- $chosen := .root.Values.checks -}}
{{- if kindIs "invalid" $chosen -}}{{- $chosen = ((.root.Values.global).preflight).checks -}}{{- end -}}
{{- if kindIs "invalid" $chosen -}}{{- $chosen = list (dict "name" "dcgm-diag" "image" (printf "preflight-dcgm-diag:%s" .root.Chart.AppVersion)) -}}{{- end -}}
{{- $checks := list -}}
{{- range $chosen -}}
{{- $check := deepCopy . -}}
{{- range $key, $value := $check -}}
{{- if kindIs "invalid" $value -}}{{- $_ := unset $check $key -}}{{- end -}}
{{- end -}}
{{- with $check.resources -}}{{- include "preflight-injector.prune" . -}}{{- end -}}
{{- $checks = append $checks $check -}}
{{- end -}}
{{- $_ := set .into "checks" $checks -}}
{{- end }}

{{/* Whether the webhook has to ask the API server for the claims of pods: where any device class matters. */}}
{{- define "preflight-injector.asksForClaims" -}}
{{- if or (.Values.gpuDetection).deviceClasses (.Values.networkDetection).deviceClasses ((.Values.global).preflight).networkDeviceClasses (dig "mirrorClaims" (list "by default") .Values.AsMap) -}}yes{{- end -}}
{{- end }}

{{/* Whether it has to ask it for anything. */}}
{{- define "preflight-injector.asks" -}}
{{- if or (include "preflight-injector.asksForClaims" .) (include "preflight-injector.followsConfigs" .) -}}yes{{- end -}}
{{- end }}

{{/* Whether it follows the PreflightConfigs of namespaces. */}}
{{- define "preflight-injector.followsConfigs" -}}
{{- if dig "preflightConfigs" "enabled" true .Values.AsMap -}}yes{{- end -}}
{{- end }}

{{- define "preflight-injector.selfManaged" -}}
{{- if dig "certificates" "selfManaged" true .Values.AsMap -}}yes{{- end -}}
{{- end }}

{{- define "preflight-injector.lifetimeDays" -}}
{{- dig "certificates" "lifetimeDays" 90 .Values.AsMap -}}
{{- end }}

{{- define "preflight-injector.schedule" -}}
{{- dig "certificates" "schedule" "23 */6 * * *" .Values.AsMap -}}
{{- end }}

{{- define "preflight-injector.failurePolicy" -}}
{{- dig "webhook" "failurePolicy" "Fail" .Values.AsMap -}}
{{- end }}

{{- define "preflight-injector.replicas" -}}
{{- dig "replicas" 2 .Values.AsMap -}}
{{- end }}

{{/* The platform connector's folder on the node. */}}
{{- define "preflight-injector.socketDir" -}}
{{- dig "platformConnector" "socketDir" "/var/run/nvsentinel" .Values.AsMap -}}
{{- end }}

{{/* Namespaces that no entry may select: where the cluster recovers, and where we do, whatever the values say. */}}
{{- define "preflight-injector.excluded" -}}
{{- concat (list .Release.Namespace "kube-system") (.Values.excludeNamespaces | default list) | uniq | sortAlpha | toYaml -}}
{{- end }}

{{/* A map of the values without the keys that somebody has set to null. */}}
{{- define "preflight-injector.set" -}}
{{- $set := dict -}}
{{- range $key, $value := . }}{{ if ne (kindOf $value) "invalid" }}{{ $_ := set $set $key $value }}{{ end }}{{ end -}}
{{- if $set -}}{{- toYaml $set -}}{{- end -}}
{{- end }}

{{- define "preflight-injector.podSecurityContext" -}}
{{- include "preflight-injector.set" .Values.podSecurityContext -}}
{{- end }}

{{- define "preflight-injector.securityContext" -}}
{{- include "preflight-injector.set" .Values.securityContext -}}
{{- end }}

{{/* Pod template of the job that keeps the certificate: the same for the install and for the schedule. */}}
{{- define "preflight-injector.certsPod" -}}
metadata:
  labels:
    {{- include "preflight-injector.labels" . | nindent 4 }}
    app.kubernetes.io/component: certs
    {{- with mergeOverwrite (dict) (.Values.podLabels | default dict) ((.Values.certificates).podLabels | default dict) }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with mergeOverwrite (dict) (.Values.podAnnotations | default dict) ((.Values.certificates).podAnnotations | default dict) }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "preflight-injector.name" . }}-certs
  restartPolicy: OnFailure
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with include "preflight-injector.podSecurityContext" . }}
  securityContext:
    {{- . | nindent 4 }}
  {{- end }}
  containers:
    - name: certs
      image: {{ include "preflight-injector.image" . }}
      {{- with .Values.imagePullPolicy }}
      imagePullPolicy: {{ . }}
      {{- end }}
      args:
        - certs
        - --namespace={{ .Release.Namespace }}
        - --service={{ include "preflight-injector.name" . }}
        - --secret={{ include "preflight-injector.secret" . }}
        - --mutating={{ include "preflight-injector.name" . }}
        - --lifetime-days={{ include "preflight-injector.lifetimeDays" . }}
        - --wait-seconds=120
      {{- with include "preflight-injector.securityContext" . }}
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
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* Who may read metrics. Without a list: everybody but pods of the namespaces that are labelled to be checked. */}}
{{- define "preflight-injector.metricsFrom" -}}
{{- $unlabelled := dict "key" "nvsentinel.nvidia.com/preflight" "operator" "NotIn" "values" (list "enabled") -}}
{{- $default := list (dict "namespaceSelector" (dict "matchExpressions" (list $unlabelled))) -}}
{{- dig "networkPolicy" "metricsFrom" $default .Values.AsMap | toYaml -}}
{{- end }}
