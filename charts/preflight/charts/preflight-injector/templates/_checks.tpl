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

{{/* Seconds of a Go duration that the schema has let pass. */}}
{{- define "preflight-injector.seconds" -}}
{{- $units := dict "ns" 1e-9 "us" 1e-6 "µs" 1e-6 "μs" 1e-6 "ms" 1e-3 "s" 1.0 "m" 60.0 "h" 3600.0 -}}
{{- $seconds := 0.0 -}}
{{- range regexFindAll "[0-9.]+[a-zµμ]+" . -1 -}}
{{- $seconds = addf $seconds (mulf (regexFind "^[0-9.]+" . | float64) (get $units (regexFind "[a-zµμ]+$" .))) -}}
{{- end -}}
{{- $seconds -}}
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
