{{- define "preflight-computedomain.on" -}}
{{- if dig "resources" "computeDomains" "enabled" true .Values.AsMap -}}yes{{- end -}}
{{- end }}

{{/* Whether IMEX is host-managed. As text: --set-string makes strings of the gates. */}}
{{- define "preflight-computedomain.hostManaged" -}}
{{- $gates := .Values.featureGates | default dict -}}
{{- $mode := dig "resources" "computeDomains" "imex" "mode" "" .Values.AsMap -}}
{{- if or (eq (toString (get $gates "HostManagedIMEX")) "true") (and (eq (toString (get $gates "HostManagedIMEXDaemon")) "true") (eq $mode "hostManaged")) -}}yes{{- end -}}
{{- end }}

{{/* The gates as they are in the values. */}}
{{- define "preflight-computedomain.gates" -}}
{{- $said := list -}}
{{- range $name, $value := .Values.featureGates | default dict -}}
{{- if ne (kindOf $value) "invalid" -}}{{- $said = append $said (printf "%s=%s" $name (toString $value)) -}}{{- end -}}
{{- end -}}
{{- join "," $said -}}
{{- end }}

{{/* Variables of both programs. */}}
{{- define "preflight-computedomain.env" -}}
- name: FEATURE_GATES
  value: {{ include "preflight-computedomain.gates" . | quote }}
{{- with dig "resources" "computeDomains" "imex" "mode" "" .Values.AsMap }}
- name: IMEX_MODE
  value: {{ . | quote }}
{{- end }}
{{- with dig "resources" "computeDomains" "imex" "isolation" "" .Values.AsMap }}
- name: IMEX_ISOLATION
  value: {{ . | quote }}
{{- end }}
{{- if .Values.exclusiveCliques }}
- name: EXCLUSIVE_CLIQUES
  value: "true"
{{- end }}
- name: LOG_LEVEL
  value: {{ .Values.logLevel | default "info" | quote }}
{{- end }}

{{/* Values by the names that NVIDIA's chart has for them: they take the place of our own before anything is made of those. */}}
{{- define "preflight-computedomain.aliases" -}}
{{- $values := .Values -}}
{{- with ($values.image).pullPolicy -}}{{- $_ := set $values "imagePullPolicy" . -}}{{- end -}}
{{- if ne (kindOf $values.logVerbosity) "invalid" -}}{{- $_ := set $values "logLevel" (ternary "debug" "info" (ge (int $values.logVerbosity) 6)) -}}{{- end -}}
{{- range $key, $value := (($values.controller).containers).computeDomain -}}
{{- $_ := set $values.controller $key (mergeOverwrite (dict) (get $values.controller $key | default dict) ($value | default dict)) -}}
{{- end -}}
{{- $plugin := (($values.kubeletPlugin).containers).computeDomains | default dict -}}
{{- with $plugin.resources -}}{{- $_ := set $values.kubeletPlugin "resources" (mergeOverwrite (dict) ($values.kubeletPlugin.resources | default dict) .) -}}{{- end -}}
{{- if eq (kindOf ($plugin.securityContext).privileged) "bool" -}}{{- $_ := set $values.kubeletPlugin "privileged" $plugin.securityContext.privileged -}}{{- end -}}
{{- end }}
