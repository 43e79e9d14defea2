{{/* The webhook's configuration file: all values that do not say how the chart itself is deployed. */}}
{{- define "preflight-injector.config" -}}
{{- $own := omit .Values "enabled" "global" "namespaces" "excludeNamespaces" "webhook" "certificates" "fullnameOverride" "image"
    "imagePullPolicy" "imagePullSecrets" "replicas" "logLevel" "resources" "nodeSelector" "tolerations" "affinity"
    "priorityClassName" "podAnnotations" "podLabels" "podSecurityContext" "securityContext" "protection" "networkPolicy"
    "alerts" "allowSecondRelease" "gangController" "preflight-common" "hostNetwork" "metricsPort" "bindAddress" "service" "serviceAccount" "extraEnv"
    "topologySpreadConstraints" "podDisruptionBudget" "commonLabels" "nameOverride" "monitor" | deepCopy -}}
{{- include "preflight.prune" $own -}}
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

{{/*
Sets `checks` of the map `into`: this chart's own, else those that all charts share, else dcgm-diag. In `container` and `securityContext` of a
check null is a word of its own and stays.
*/}}
{{- define "preflight-injector.chooseChecks" -}}
{{- $chosen := .root.Values.checks -}}
{{- if kindIs "invalid" $chosen -}}{{- $chosen = ((.root.Values.global).preflight).checks -}}{{- end -}}
{{- if kindIs "invalid" $chosen -}}{{- $chosen = list (dict "name" "dcgm-diag" "image" (printf "preflight-dcgm-diag:%s" (index .root.Chart.Annotations "preflight-dcgm-diag"))) -}}{{- end -}}
{{- $checks := list -}}
{{- range $chosen -}}
{{- $check := deepCopy . -}}
{{- range $key, $value := $check -}}
{{- if kindIs "invalid" $value -}}{{- $_ := unset $check $key -}}{{- end -}}
{{- end -}}
{{- with $check.resources -}}{{- include "preflight.prune" . -}}{{- end -}}
{{- with $check.image -}}{{- $_ := set $check "image" (include "preflight.fromRegistry" (dict "root" $.root "image" .)) -}}{{- end -}}
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

{{- define "preflight-injector.failurePolicy" -}}
{{- dig "webhook" "failurePolicy" "Fail" .Values.AsMap -}}
{{- end }}

{{/* The platform connector's folder on the node. */}}
{{- define "preflight-injector.socketDir" -}}
{{- dig "platformConnector" "socketDir" "/var/run/nvsentinel" .Values.AsMap -}}
{{- end }}
