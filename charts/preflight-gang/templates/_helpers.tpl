{{- define "preflight-gang.name" -}}
{{- .Values.fullnameOverride | default "preflight-gang" -}}
{{- end }}

{{- define "preflight-gang.selector" -}}
app.kubernetes.io/name: preflight-gang
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "preflight-gang.labels" -}}
{{ include "preflight-gang.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: preflight
app.kubernetes.io/component: controller
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Keys of the values that are the controller's configuration; every other key says how it is deployed. */}}
{{- define "preflight-gang.config" -}}
{{- $shared := dict "sources" (include "preflight-gang.sources" . | fromJsonArray) -}}
{{- with ((.Values.global).preflight).instanceTypeLabel }}{{ $_ := set $shared "instanceTypeLabel" . }}{{ end -}}
{{- merge $shared (pick .Values "auditInterval" "checks" "excludeNamespaces" "gpuResourceNames" "instanceTypeLabel" "leaseDuration" "logLevel"
    "namespaces" "sources" "topologyLabels" "writes") | toYaml -}}
{{- end }}

{{/* Configured kinds of gangs: this chart's own, and those that all charts share. */}}
{{- define "preflight-gang.sources" -}}
{{- concat .Values.sources (((.Values.global).preflight).gangSources | default list) | toJson -}}
{{- end }}

{{/* The controller as the API server knows it. */}}
{{- define "preflight-gang.user" -}}
{{ printf "system:serviceaccount:%s:%s" .Release.Namespace (include "preflight-gang.name" .) }}
{{- end }}

{{/* True for whoever is neither the controller nor exempt. */}}
{{- define "preflight-gang.notExempt" -}}
!(request.userInfo.username in {{ prepend .Values.protection.exemptUsers (include "preflight-gang.user" .) | toJson }})
{{- with .Values.protection.exemptGroups }} && !request.userInfo.?groups.orValue([]).exists(g, g in {{ toJson . }}){{ end }}
{{- end }}
