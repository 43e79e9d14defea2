{{/* Of both webhook configurations, whatever the release is called: it has to sort before `kueue-`. */}}
{{- define "preflight-appwrapper.configuration" -}}
appwrapper-preflight
{{- end }}

{{- define "preflight-appwrapper.labelsNodes" -}}
{{- if dig "labeler" "enabled" false .Values.AsMap -}}yes{{- end -}}
{{- end }}

{{- define "preflight-appwrapper.monitors" -}}
{{- if dig "autopilot" "monitorNodes" true .Values.AsMap -}}yes{{- end -}}
{{- end }}

{{- define "preflight-appwrapper.labelKey" -}}
{{- dig "nodeHealth" "key" "preflight.nvsentinel.nvidia.com/gpu-health" .Values.AsMap -}}
{{- end }}

{{/* Kinds that may be wrapped, one by one, if any. A JSON list. */}}
{{- define "preflight-appwrapper.wrappedKinds" -}}
{{- $kinds := list -}}
{{- range $of := .Values.wrappedKinds -}}
{{- range $of.resources -}}{{- $kinds = append $kinds (dict "group" $of.group "resource" .) -}}{{- end -}}
{{- end -}}
{{- with $kinds }}{{ toJson . }}{{ end -}}
{{- end }}

{{/* Keys of the values that are the service's configuration; every other key says how it is deployed. */}}
{{- define "preflight-appwrapper.config" -}}
{{- $own := pick .Values "faultTolerance" "autopilot" "defaultQueueName" "schedulerName" "failureRules" "nodeHealth" "evacuationBrake" "trustedUsers"
    "leaseDuration" "logLevel" | deepCopy -}}
{{- include "preflight.prune" $own -}}
{{- $shared := ((.Values.global).preflight).sickNodeConditions -}}
{{- if not (kindIs "invalid" $shared) -}}{{- $_ := set $own "nodeHealth" (set ($own.nodeHealth | default dict) "conditions" $shared) -}}{{- end -}}
{{- $labels := include "preflight-appwrapper.labelsNodes" . -}}
{{- $chosen := ((.Values.global).preflight).gpuClaimResource -}}
{{- if or $labels $chosen -}}
{{- $taint := dict "key" (include "preflight-appwrapper.labelKey" .) "value" (dig "nodeHealth" "value" "EVICT" .Values.AsMap) "effect" "NoExecute" -}}
{{- $pilot := $own.autopilot | default dict -}}
{{- $key := "autopilot.ibm.com/gpuhealth" -}}
{{- $autopilot := list (dict "key" $key "value" "ERR" "effect" "NoSchedule") (dict "key" $key "value" "EVICT" "effect" "NoExecute") -}}
{{- /* Where nothing is said, what the service itself begins with. */ -}}
{{- $taints := $pilot.resourceTaints | default (dict "nvidia.com/gpu" $autopilot "gpu.nvidia.com" $autopilot) -}}
{{- range list "nvidia.com/gpu" "gpu.nvidia.com" -}}
{{- $of := index $taints . | default list -}}
{{- if and $labels (not (has $taint $of)) -}}{{- $_ := set $taints . (append $of $taint) -}}{{- end -}}
{{- end -}}
{{- /* Pods of preflight-gpu-scheduler have GPUs of the same nodes, by another name. */ -}}
{{- if and $chosen (not (hasKey $taints $chosen)) -}}{{- $_ := set $taints $chosen (index $taints "nvidia.com/gpu" | default list) -}}{{- end -}}
{{- $_ := set $pilot "resourceTaints" $taints -}}
{{- $_ := set $own "autopilot" $pilot -}}
{{- end -}}
{{- $own | toYaml -}}
{{- end }}

{{/* The Secret with the key by which the webhook marks what it has judged: the certificate's, unless somebody else keeps that. */}}
{{- define "preflight-appwrapper.markSecret" -}}
{{- include "preflight.selfManaged" . | empty | ternary (printf "%s-mark" (include "preflight.name" .)) (include "preflight.secret" .) -}}
{{- end }}
