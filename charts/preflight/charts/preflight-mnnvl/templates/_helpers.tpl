{{- define "preflight-mnnvl.guarded" -}}
{{- if (.Values.rbac).ownerReferencesPermissionEnforcement -}}yes{{- end -}}
{{- end }}

{{- define "preflight-mnnvl.guardedLiteral" -}}
{{- if include "preflight-mnnvl.guarded" . -}}{{- include "preflight-mnnvl.literal" . -}}{{- end -}}
{{- end }}

{{- define "preflight-mnnvl.webhook" -}}
{{ include "preflight.name" . }}-webhook
{{- end }}

{{- define "preflight-mnnvl.webhookSecret" -}}
{{- (.Values.certificates).secretName | default (printf "%s-tls" (include "preflight-mnnvl.webhook" .)) -}}
{{- end }}

{{- define "preflight-mnnvl.literal" -}}
{{- if eq (.Values.mode | default "driver") "literal" -}}yes{{- end -}}
{{- end }}

{{/* Keys of the values that are the configuration; every other key says how it is deployed. */}}
{{- define "preflight-mnnvl.config" -}}
{{- $own := dict "instance" (.Values.instance | default .Release.Name) -}}
{{- $said := pick .Values "mode" "feature" "onUnsupported" "requireFabricNodes" "placement" "gpuResources" "gpuDeviceClasses" "leaseSeconds" "writes" "logLevel" -}}
{{- with ((.Values.global).preflight).gpuClaimResource -}}
{{- $_ := set $said "gpuResources" (append ($.Values.gpuResources | default (list "nvidia.com/gpu")) . | uniq) -}}
{{- end -}}
{{- include "preflight.set" (merge $own $said) -}}
{{- end }}
