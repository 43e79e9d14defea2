{{- define "preflight-gang.name" -}}
{{- .Values.fullnameOverride | default "preflight-gang" -}}
{{- end }}

{{- define "preflight-gang.image" -}}
{{- $image := .Values.image | default dict -}}
{{- $repository := $image.repository | default "preflight-gang" -}}
{{ if $image.digest }}{{ printf "%s@%s" $repository $image.digest | quote }}{{ else }}{{ printf "%s:%s" $repository ($image.tag | default .Chart.AppVersion) | quote }}{{ end }}
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

{{/* A map of the values without the keys that somebody has set to null. */}}
{{- define "preflight-gang.set" -}}
{{- $set := dict -}}
{{- range $key, $value := . }}{{ if ne (kindOf $value) "invalid" }}{{ $_ := set $set $key $value }}{{ end }}{{ end -}}
{{- if $set -}}{{- toYaml $set -}}{{- end -}}
{{- end }}

{{- define "preflight-gang.replicas" -}}
{{- dig "replicas" 2 .Values.AsMap -}}
{{- end }}

{{/* Names of the checks whose results are counted: this chart's own list, else those that all charts share, else ours. A JSON list. */}}
{{- define "preflight-gang.checks" -}}
{{- $shared := ((.Values.global).preflight).checks -}}
{{- if not (kindIs "invalid" .Values.checks) -}}
{{- toJson .Values.checks -}}
{{- else if not (kindIs "invalid" $shared) -}}
{{- $names := list -}}
{{- range $shared -}}{{- $names = append $names .name -}}{{- end -}}
{{- toJson $names -}}
{{- else -}}
["dcgm-diag","nccl-loopback","nccl-allreduce"]
{{- end -}}
{{- end }}

{{/* Whether GPUs by dynamic resource allocation are looked for: not without classes, and not without an audit. */}}
{{- define "preflight-gang.auditsClaims" -}}
{{- if and (dig "gpuDeviceClasses" (list "gpu.nvidia.com") .Values.AsMap) (ne (toString .Values.auditInterval) "0") -}}yes{{- end -}}
{{- end }}

{{/* Who may read metrics. Without a list: everybody but pods of the namespaces that are labelled to be checked. */}}
{{- define "preflight-gang.metricsFrom" -}}
{{- $unlabelled := dict "key" "nvsentinel.nvidia.com/preflight" "operator" "NotIn" "values" (list "enabled") -}}
{{- $default := list (dict "namespaceSelector" (dict "matchExpressions" (list $unlabelled))) -}}
{{- dig "networkPolicy" "metricsFrom" $default .Values.AsMap | toYaml -}}
{{- end }}

{{/* Keys of the values that are the controller's configuration; every other key says how it is deployed. */}}
{{- define "preflight-gang.config" -}}
{{- $shared := dict "sources" (include "preflight-gang.sources" . | fromJsonArray) -}}
{{- /* As the injector has them: its own namespace and kube-system are never touched. */ -}}
{{- $_ := set $shared "excludeNamespaces" (concat (.Values.excludeNamespaces | default list) (list "kube-system" .Release.Namespace) | uniq) -}}
{{- $_ := set $shared "checks" (include "preflight-gang.checks" . | fromJsonArray) -}}
{{- with ((.Values.global).preflight).instanceTypeLabel }}{{ $_ := set $shared "instanceTypeLabel" . }}{{ end -}}
{{- with ((.Values.global).preflight).gpuClaimResource -}}
{{- $_ := set $shared "gpuClaims" true -}}
{{- $_ := set $shared "gpuResourceNames" (append ($.Values.gpuResourceNames | default (list "nvidia.com/gpu")) . | uniq) -}}
{{- end -}}
{{- $own := dict -}}
{{- range $key, $value := pick .Values "auditInterval" "gpuClaims" "gpuDeviceClasses" "gpuResourceNames" "instanceTypeLabel" "leaseDuration" "logLevel" "namespaces" "otherResourceNames"
    "topologyLabels" "writes" -}}
{{- if not (kindIs "invalid" $value) -}}{{- $_ := set $own $key $value -}}{{- end -}}
{{- end -}}
{{- merge $shared $own | toYaml -}}
{{- end }}

{{/* Configured kinds of gangs: this chart's own, and those that all charts share. */}}
{{- define "preflight-gang.sources" -}}
{{- concat (.Values.sources | default list) (((.Values.global).preflight).gangSources | default list) | default list | toJson -}}
{{- end }}

{{/* The controller as the API server knows it. */}}
{{- define "preflight-gang.user" -}}
{{ printf "system:serviceaccount:%s:%s" .Release.Namespace (include "preflight-gang.name" .) }}
{{- end }}

{{/* True for whoever is neither the controller nor exempt. */}}
{{- define "preflight-gang.notExempt" -}}
!(request.userInfo.username in {{ prepend ((.Values.protection).exemptUsers | default list) (include "preflight-gang.user" .) | toJson }})
{{- with (.Values.protection).exemptGroups }} && !request.userInfo.?groups.orValue([]).exists(g, g in {{ toJson . }}){{ end }}
{{- end }}

{{/* Seconds of a Go duration that the schema has let pass. */}}
{{- define "preflight-gang.seconds" -}}
{{- $units := dict "ns" 1e-9 "us" 1e-6 "µs" 1e-6 "μs" 1e-6 "ms" 1e-3 "s" 1.0 "m" 60.0 "h" 3600.0 -}}
{{- $seconds := 0.0 -}}
{{- range regexFindAll "[0-9.]+[a-zµμ]+" . -1 -}}
{{- $seconds = addf $seconds (mulf (regexFind "^[0-9.]+" . | float64) (get $units (regexFind "[a-zµμ]+$" .))) -}}
{{- end -}}
{{- $seconds -}}
{{- end }}
