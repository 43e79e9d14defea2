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
{{- $own := pick .Values "auditInterval" "gpuClaims" "gpuDeviceClasses" "gpuResourceNames" "instanceTypeLabel" "leaseDuration" "logLevel" "namespaces"
    "nodeConditions" "otherResourceNames" "topologyLabels" "writes" -}}
{{- $sick := ((.Values.global).preflight).sickNodeConditions -}}
{{- if not (kindIs "invalid" $sick) }}{{ $_ := set $own "nodeConditions" $sick }}{{ end -}}
{{- include "preflight.set" (merge $shared $own) -}}
{{- end }}

{{/* Configured kinds of gangs: this chart's own, and those that all charts share. */}}
{{- define "preflight-gang.sources" -}}
{{- concat (.Values.sources | default list) (((.Values.global).preflight).gangSources | default list) | default list | toJson -}}
{{- end }}
