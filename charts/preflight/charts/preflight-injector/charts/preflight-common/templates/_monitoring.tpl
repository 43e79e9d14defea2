{{/*
What an operator's Prometheus takes of a chart, where alerts.enabled says so, here or for all parts at once: a PodMonitor of its pods, and a
PrometheusRule of what can befall every program and, in "rules", of what only this one can. "title": how names of alerts begin; "leader": an
expression that is 1 while somebody leads, "idle": what nobody does while nobody leads; "reconciles": whether these are counted; "behind" and
"expiry": metrics of its mirrors and of its serving certificate. Any of them may be left out.
*/}}
{{- define "preflight.monitoring" -}}
{{- include "preflight.alerts" . }}
{{- include "preflight.dashboards" .root }}
{{- end }}

{{/*
The files of the chart's folder "dashboards", each in a ConfigMap as Grafana's sidecar looks for them.
*/}}
{{- define "preflight.dashboards" -}}
{{- $shared := ((.Values.global).preflight).alerts | default dict -}}
{{- if or (.Values.alerts).dashboards $shared.dashboards -}}
{{- $labels := dict "grafana_dashboard" "1" -}}
{{- range $path, $text := .Files.Glob "dashboards/*.json" }}
{{- $name := base $path | trimSuffix ".json" }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  {{- include "preflight.metadata" (dict "root" $ "name" (printf "dashboard-%s" $name) "labels" $labels) | nindent 2 }}
data:
  {{- /* A job is called after the monitor, which an override has called otherwise. */}}
  {{ printf "preflight-%s.json" $name }}: |
    {{- $text | toString | replace (printf ".*%s.*" $.Chart.Name) (printf ".*%s.*" (include "preflight.name" $)) | nindent 4 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "preflight.alerts" -}}
{{- $shared := ((.root.Values.global).preflight).alerts | default dict -}}
{{- $own := .root.Values.alerts | default dict -}}
{{- $monitor := .root.Values.monitor | default dict -}}
{{- if or $own.enabled $shared.enabled $monitor.enabled -}}
{{- $part := dict "root" .root "name" "alerts" "labels" (merge (dict) ($own.labels | default dict) ($shared.labels | default dict)) -}}
{{- $name := include "preflight.fullname" $part -}}
{{- $in := printf "namespace=%q" .root.Release.Namespace -}}
{{- $job := printf "job=%q" (printf "%s/%s" .root.Release.Namespace $name) -}}
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  {{- include "preflight.metadata" (set (omit $part "labels") "labels" (mergeOverwrite (dict) $part.labels ($monitor.labels | default dict))) | nindent 2 }}
spec:
  selector:
    matchLabels:
      {{- include "preflight.selector" (dict "root" .root) | nindent 6 }}
  podMetricsEndpoints:
    - port: {{ .port | default "metrics" }}
      {{- with $monitor.interval }}
      interval: {{ . }}
      {{- end }}
{{- if or $own.enabled $shared.enabled }}
---
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  {{- include "preflight.metadata" $part | nindent 2 }}
spec:
  groups:
    - name: {{ .root.Chart.Name }}
      rules:
        {{- /* Where no replica is wanted, none is missed. */}}
        {{- if ne (toString (dig "replicas" 2 .root.Values.AsMap)) "0" }}
        - alert: {{ .title }}NobodyAnswers
          expr: absent(up{ {{- $job }}} == 1)
          for: 5m
          labels: {severity: critical}
          annotations:
            summary: No pod of {{ .root.Chart.Name }} answers when it is asked for its metrics.
            description: kubectl get pods -n {{ .root.Release.Namespace }} -l app.kubernetes.io/name={{ .root.Chart.Name }} says why; where they run, alerts.labels or a NetworkPolicy keeps Prometheus from them (networkPolicy.metricsFrom).
        {{- with .leader }}
        - alert: {{ $.title }}NobodyLeads
          expr: absent({{ . | replace "{NAMESPACE" (printf "{%s" $in) }} == 1)
          for: 5m
          labels: {severity: critical}
          annotations:
            summary: No replica of {{ $.root.Chart.Name }} leads, so that {{ $.idle }}.
            description: The logs of its pods say why the Lease in {{ $.root.Release.Namespace }} cannot be had.
        {{- end }}
        {{- end }}
        {{- if .reconciles }}
        - alert: {{ $.title }}ReconcilesFail
          expr: sum by (controller) (rate(controller_runtime_reconcile_total{ {{- $job }},result="error"}[10m])) / sum by (controller) (rate(controller_runtime_reconcile_total{ {{- $job }}}[10m])) > 0.1
          for: 15m
          labels: {severity: warning}
          annotations:
            summary: A tenth of the reconciles of {{ $.root.Chart.Name }} fails.
            description: The log of the replica that leads names each object and why; an API server that refuses, or rights that were taken away, are the usual causes.
        {{- end }}
        {{- with .behind }}
        - alert: {{ $.title }}CacheBehind
          expr: max({{ . }}{ {{- $in }}}) > 0
          for: 10m
          labels: {severity: warning}
          annotations:
            summary: What {{ $.root.Chart.Name }} knows of the cluster is behind it.
            description: What it decides is of an older state until the API server answers its watches again; /readyz of its pods names the collection.
        {{- end }}
        {{- with .expiry }}
        {{- /* One of ours is renewed in its last third, at the first look: where that is short, a week before its end nothing is late. */}}
        {{- $days := 7.0 }}
        {{- if include "preflight.selfManaged" $.root }}
        {{- $between := include "preflight.daysBetweenRuns" (dig "certificates" "schedule" "0 */6 * * *" $.root.Values.AsMap) | float64 }}
        {{- $days = subf (divf (include "preflight.lifetimeDays" $.root | float64) 3) $between | minf 7 | maxf 0 }}
        {{- end }}
        - alert: {{ $.title }}CertificateEnds
          expr: min({{ . }}{ {{- $in }}}) - time() < {{ round $days 1 }} * 86400
          for: 1h
          labels: {severity: critical}
          annotations:
            summary: The serving certificate of {{ $.root.Chart.Name }} ends within {{ round $days 1 }} days and was not renewed.
            description: The log of its CronJob or Deployment of certificates, or of cert-manager, says why; once it has ended no pod that it reviews can be created, or none is checked, by failurePolicy.
        {{- end }}
        {{- with .rules }}
        {{- . | replace "{NAMESPACE" (printf "{%s" $in) | nindent 8 }}
        {{- end }}
{{- end }}
{{- end }}
{{- end }}
