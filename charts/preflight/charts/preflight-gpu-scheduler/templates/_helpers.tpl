{{/* Keys of the values that are the services' configuration; every other key says how they are deployed. */}}
{{- define "preflight-gpu-scheduler.config" -}}
{{- $own := pick .Values "bindBudget" "countResource" "devicePlugin" "gangBind" "gangMaxWait" "gpuClasses" "guardOthers" "heartbeat" "lockNamespace" "logLevel"
    "missingClaim" "missingNodeStatus" "nodeConditions" "reservationSeconds" "schedulerName" "staleAfter" "sweep" -}}
{{- $shared := ((.Values.global).preflight).sickNodeConditions -}}
{{- if not (kindIs "invalid" $shared) -}}{{- $_ := set $own "nodeConditions" $shared -}}{{- end -}}
{{- include "preflight.set" $own -}}
{{- end }}

{{- define "preflight-gpu-scheduler.lockNamespace" -}}
{{- .Values.lockNamespace | default "gpu-scheduler-leases" -}}
{{- end }}

{{/* The counted resource; empty where nothing is counted. Null is the services' own default, as for every key. */}}
{{- define "preflight-gpu-scheduler.count" -}}
{{- if kindIs "invalid" .Values.countResource -}}gpu.scheduling/gpu{{- else -}}{{- .Values.countResource -}}{{- end -}}
{{- end }}
