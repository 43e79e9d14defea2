{{/* Takes from a map, and from the maps in it, the keys that somebody has set to null: the service's default applies to them. */}}
{{- define "preflight.prune" -}}
{{- range $key, $value := . -}}
{{- if kindIs "invalid" $value -}}{{- $_ := unset $ $key -}}
{{- else if kindIs "map" $value -}}{{- include "preflight.prune" $value -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* A map of the values as YAML, without what is null; nothing where nothing is left. */}}
{{- define "preflight.set" -}}
{{- if . -}}
{{- $set := deepCopy . -}}
{{- include "preflight.prune" $set -}}
{{- with $set }}{{ toYaml . }}{{ end -}}
{{- end -}}
{{- end }}

{{/* Seconds of a Go duration that the schema has let pass. */}}
{{- define "preflight.seconds" -}}
{{- $units := dict "ns" 1e-9 "us" 1e-6 "µs" 1e-6 "μs" 1e-6 "ms" 1e-3 "s" 1.0 "m" 60.0 "h" 3600.0 -}}
{{- $seconds := 0.0 -}}
{{- range regexFindAll "[0-9.]+[a-zµμ]+" . -1 -}}
{{- $seconds = addf $seconds (mulf (regexFind "^[0-9.]+" . | float64) (get $units (regexFind "[a-zµμ]+$" .))) -}}
{{- end -}}
{{- $seconds -}}
{{- end }}

{{/* The ConfigMap with the services' configuration, which template CHART.config makes of the values. */}}
{{- define "preflight.config" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  {{- include "preflight.metadata" . | nindent 2 }}
data:
  config.yaml: |
    {{- include (printf "%s.config" .root.Chart.Name) .root | nindent 4 }}
{{- end }}

{{/*
The definitions of `file`. Not in crds/: Helm would never upgrade them there, and an API server drops fields that an old definition does not
know without a word. Templates they are, kept at uninstall, and left alone where they are not this release's: Helm refuses to install over an
object of another one.
*/}}
{{- define "preflight.crds" -}}
{{- $values := .root.Values.crd | default dict -}}
{{- if and (dig "install" true $values) (dig "enabled" true $values) }}
{{- range splitList "\n---\n" (.root.Files.Get .file) }}
{{- $crd := fromYaml . }}
{{- $name := $crd.metadata.name }}
{{- $there := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" $name }}
{{- $owner := dig "metadata" "annotations" (dict) $there }}
{{- $ours := and (eq (get $owner "meta.helm.sh/release-name") $.root.Release.Name) (eq (get $owner "meta.helm.sh/release-namespace") $.root.Release.Namespace) }}
{{- if or (not $there) $ours }}
---
apiVersion: {{ $crd.apiVersion }}
kind: {{ $crd.kind }}
metadata:
  {{- $kept := dig "keep" true $values | ternary (dict "helm.sh/resource-policy" "keep") dict }}
  {{- include "preflight.metadata" (dict "root" $.root "fixed" $name "cluster" true "annotations" $kept) | nindent 2 }}
spec:
  {{- toYaml $crd.spec | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
