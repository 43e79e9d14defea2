{{/* The gang controller as the API server knows it: beside the webhook it alone writes to pods what is reserved. */}}
{{- define "preflight-injector.controller" -}}
{{- (.Values.protection).controller | default (printf "system:serviceaccount:%s:preflight-gang" .Release.Namespace) -}}
{{- end }}

{{/* CEL: true for whoever is neither the gang controller nor exempt. */}}
{{- define "preflight-injector.notExempt" -}}
{{- include "preflight.notExempt" (dict "root" . "user" (include "preflight-injector.controller" .)) -}}
{{- end }}

{{/* CEL: the namespace's word about preflight. */}}
{{- define "preflight-injector.optIn" -}}
namespaceObject.metadata.?labels['nvsentinel.nvidia.com/preflight'].orValue('')
{{- end }}

{{/* CEL: whether the webhook is called for pods of the request's namespace: what its entries' selectors say (webhook.yaml). */}}
{{- define "preflight-injector.atWork" -}}
!(request.namespace in {{ include "preflight.excluded" . }}) && (
{{- include "preflight-injector.optIn" . }} == 'enabled'
{{- with .Values.namespaces }} || ({{ include "preflight-injector.optIn" $ }} != 'disabled' && request.namespace in {{ toJson . }}){{ end }})
{{- end }}

{{/* CEL: the pod of a create request, for a sentence. A name that the API server makes is not known to the request. */}}
{{- define "preflight-injector.created" -}}
'Pod ' + request.namespace + '/' + object.metadata.?name.orValue(object.metadata.?generateName.orValue(''))
{{- end }}

{{/* CEL: a static pod's image in the API, which its kubelet writes and nobody runs. */}}
{{- define "preflight-injector.notMirror" -}}
!('system:nodes' in request.userInfo.?groups.orValue([]) && 'kubernetes.io/config.mirror' in object.metadata.?annotations.orValue({}))
{{- end }}

{{/*
A regular expression (RE2) for paths at, above or below the connector's folder on the node, also written with `//` and `/./`; `/run` and
`/var/run` are one on most nodes, and a process below /proc has the node's root and open folders, as `root`, `cwd`, `fd` and `map_files`.
*/}}
{{- define "preflight-injector.nearTheConnector" -}}
{{- $folder := include "preflight-injector.socketDir" . | clean -}}
{{- $folders := list $folder -}}
{{- if hasPrefix "/var/run/" $folder -}}{{- $folders = append $folders (trimPrefix "/var" $folder) -}}{{- end -}}
{{- if hasPrefix "/run/" $folder -}}{{- $folders = append $folders (print "/var" $folder) -}}{{- end -}}
{{- $ways := list `\.?$` `proc(/\.?)*(/([0-9]+|self|thread-self)(/.*)?)?$` `dev(/\.?)*/(fd|std(in|out|err))(/.*)?$` -}}
{{- range $folders -}}
{{- $way := `(/.*)?$` -}}
{{- range $index, $part := splitList "/" (trimPrefix "/" .) | reverse -}}
{{- if $index -}}{{- $way = print `(/\.?)*(/` $way `|$)` -}}{{- end -}}
{{- $way = print (regexQuoteMeta $part) $way -}}
{{- end -}}
{{- $ways = append $ways $way -}}
{{- end -}}
^(\.?/)*({{ join "|" $ways }})
{{- end }}

{{/* Binding of the policy whose part is given. */}}
{{- define "preflight-injector.binding" -}}
{{- include "preflight.binding" (merge (dict "namespaceSelector" (.root.Values.protection).namespaceSelector) .) -}}
{{- end }}
