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
Whose an object of the cluster is that outlives its release ("api", "kind", "name"), in words; empty where there is none, or it is this release's.
Helm refuses to install over an object of another release.
*/}}
{{- define "preflight.foreign" -}}
{{- with lookup .api .kind "" .name -}}
{{- $owner := dig "metadata" "annotations" (dict) . -}}
{{- $name := get $owner "meta.helm.sh/release-name" -}}
{{- $namespace := get $owner "meta.helm.sh/release-namespace" -}}
{{- if not $name -}}no release's
{{- else if not (and (eq $name $.root.Release.Name) (eq $namespace $.root.Release.Namespace)) -}}{{ printf "release %s/%s's" $namespace $name }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* What an install says of such objects: definitions of the chart's folder "generated", and "namespaces". */}}
{{- define "preflight.keptNotes" -}}
{{- $kept := list -}}
{{- range $path, $text := .root.Files.Glob "generated/*.yaml" -}}
{{- range splitList "\n---\n" (toString $text) -}}
{{- $kept = append $kept (dict "root" $.root "api" "apiextensions.k8s.io/v1" "kind" "CustomResourceDefinition" "name" (fromYaml .).metadata.name) -}}
{{- end -}}
{{- end -}}
{{- range .namespaces -}}
{{- $kept = append $kept (dict "root" $.root "api" "v1" "kind" "Namespace" "name" .) -}}
{{- end -}}
{{- range $kept -}}
{{- $whose := include "preflight.foreign" . -}}
{{- if $whose }}

{{ .kind }} {{ .name }} is {{ $whose }} and was left as it is. Where that is gone, take it over and upgrade once more (by --force-conflicts where Helm 4 names a conflict); an old definition drops fields that it does not know:

  kubectl annotate {{ lower .kind }} {{ .name }} --overwrite meta.helm.sh/release-name={{ .root.Release.Name }} meta.helm.sh/release-namespace={{ .root.Release.Namespace }}
  kubectl label {{ lower .kind }} {{ .name }} --overwrite app.kubernetes.io/managed-by=Helm
{{- end -}}
{{- end -}}
{{- end }}

{{/*
The definitions of `file`. Not in crds/: Helm would never upgrade them there, and an API server drops fields that an old definition does not
know without a word. Templates they are, kept at uninstall, and left alone where they are not this release's ("preflight.keptNotes" says so).
*/}}
{{- define "preflight.crds" -}}
{{- $values := .root.Values.crd | default dict -}}
{{- if and (dig "install" true $values) (dig "enabled" true $values) }}
{{- range splitList "\n---\n" (.root.Files.Get .file) }}
{{- $crd := fromYaml . }}
{{- $name := $crd.metadata.name }}
{{- if not (include "preflight.foreign" (dict "root" $.root "api" $crd.apiVersion "kind" $crd.kind "name" $name)) }}
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
