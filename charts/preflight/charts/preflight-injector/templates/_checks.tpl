{{/* Names of the checks in force that test between the members of a gang. A JSON list. */}}
{{- define "preflight-injector.gangWide" -}}
{{- $in := dict -}}
{{- include "preflight-injector.chooseChecks" (dict "root" . "into" $in) -}}
{{- $names := list -}}
{{- range $in.checks -}}
{{- if and (dig "enabled" true .) (or .gang (eq .name "nccl-allreduce")) -}}{{- $names = append $names .name -}}{{- end -}}
{{- end -}}
{{- toJson $names -}}
{{- end }}

{{/* Names of the checks that pods get. A JSON list. */}}
{{- define "preflight-injector.checkNames" -}}
{{- $in := dict -}}
{{- include "preflight-injector.chooseChecks" (dict "root" . "into" $in) -}}
{{- $names := list -}}
{{- range $in.checks -}}{{- if dig "enabled" true . -}}{{- $names = append $names .name -}}{{- end -}}{{- end -}}
{{- toJson $names -}}
{{- end }}

{{/* Whether umbrella chart preflight is above, which sees for itself whether the gang controller is among its parts. */}}
{{- define "preflight-injector.underUmbrella" -}}
{{- if regexMatch "(^|/)preflight/charts/preflight-injector/templates$" .Template.BasePath -}}yes{{- end -}}
{{- end }}

{{/* Where the DCGM hostengine may be, one place or several. A JSON list. */}}
{{- define "preflight-injector.engines" -}}
{{- $given := dig "dcgm" "hostengineAddr" (list "$(NODE_IP):5555" "nvidia-dcgm.gpu-operator.svc:5555") .Values.AsMap -}}
{{- $engines := list -}}
{{- range kindIs "string" $given | ternary (list $given) $given -}}
{{- range splitList "," . -}}{{- with trim . -}}{{- $engines = append $engines . -}}{{- end -}}{{- end -}}
{{- end -}}
{{- toJson $engines -}}
{{- end }}
