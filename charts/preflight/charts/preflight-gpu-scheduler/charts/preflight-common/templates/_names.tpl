{{/*
How objects are called and labelled. Most templates of this chart take a dict that describes a part of an installation: "root", the chart's own
scope; "component"; "name", the end of its objects' names; and what else their comments say. Others take the chart's own scope.
*/}}
{{- define "preflight.name" -}}
{{- .Values.fullnameOverride | default .Values.nameOverride | default .Chart.Name -}}
{{- end }}

{{- define "preflight.fullname" -}}
{{- include "preflight.name" .root }}{{ with .name }}-{{ . }}{{ end -}}
{{- end }}

{{/* The part's ServiceAccount as the API server knows it. */}}
{{- define "preflight.user" -}}
{{- printf "system:serviceaccount:%s:%s" .root.Release.Namespace (include "preflight.fullname" .) -}}
{{- end }}

{{/* All pods of the chart, or those of one component. */}}
{{- define "preflight.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{/* Of an object or a pod: ours, and "labels" over those that the values have for all. */}}
{{- define "preflight.labels" -}}
{{ include "preflight.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: preflight
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- with mergeOverwrite (dict) (.root.Values.commonLabels | default dict) (.labels | default dict) }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Of an object; "fixed" is its whole name, "cluster" whether it has no namespace, "labels" and "annotations" are added. */}}
{{- define "preflight.metadata" -}}
name: {{ .fixed | default (include "preflight.fullname" .) | quote }}
{{- if not .cluster }}
namespace: {{ .namespace | default .root.Release.Namespace | quote }}
{{- end }}
labels:
  {{- include "preflight.labels" . | nindent 2 }}
{{- with .annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Namespaces that no webhook is called for: where the cluster recovers, and where we do, whatever the values say. A JSON list. */}}
{{- define "preflight.excluded" -}}
{{- concat (list .Release.Namespace "kube-system") (.Values.excludeNamespaces | default list) ((.Values.webhook).excludeNamespaces | default list) | uniq | sortAlpha | toJson -}}
{{- end }}
