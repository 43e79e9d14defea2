{{/*
The webhook's certificate: kept by a job of ours, unless the values say that somebody else does. The job's part is a dict with "kinds", mutating and
validating, and the "configuration" of that name; the webhook's "service"; the "secret" that holds the certificate; and the "minute" of each sixth hour
at which it is looked after. Its account, which owns the Secret so that this goes with the release: certificate_account of the service's table of rights.
*/}}
{{- define "preflight.selfManaged" -}}
{{- if dig "certificates" "selfManaged" true .Values.AsMap -}}yes{{- end -}}
{{- end }}

{{- define "preflight.secret" -}}
{{- (.Values.certificates).secretName | default (printf "%s-tls" (include "preflight.name" .)) -}}
{{- end }}

{{- define "preflight.lifetimeDays" -}}
{{- dig "certificates" "lifetimeDays" 90 .Values.AsMap -}}
{{- end }}

{{/* Days that may pass between two runs of a schedule, at the most: an upper bound, from the coarsest field that is restricted. */}}
{{- define "preflight.daysBetweenRuns" -}}
{{- $names := dict "@yearly" 366.0 "@annually" 366.0 "@monthly" 31.0 "@weekly" 7.0 "@daily" 1.0 "@midnight" 1.0 "@hourly" 0.05 -}}
{{- $schedule := trim . -}}
{{- if hasKey $names $schedule -}}
{{- get $names $schedule -}}
{{- else -}}
{{- $fields := regexSplit `\s+` $schedule -1 -}}
{{- if ne (len $fields) 5 -}}
{{- fail (printf "certificates.schedule is %q; write five fields (minute, hour, day of the month, month, day of the week) or @daily." $schedule) -}}
{{- end -}}
{{- $hour := index $fields 1 -}}{{- $day := index $fields 2 -}}{{- $month := index $fields 3 -}}{{- $weekday := index $fields 4 -}}
{{- if not (has $month (list "*" "?")) -}}366
{{- else if not (has $weekday (list "*" "?")) -}}7
{{- else if regexMatch `^\*/\d+$` $day -}}{{- trimPrefix "*/" $day -}}
{{- else if not (has $day (list "*" "?")) -}}31
{{- else if eq $hour "*" -}}0.05
{{- else if regexMatch `^\*/\d+$` $hour -}}{{- divf (trimPrefix "*/" $hour | float64) 24 -}}
{{- else -}}1
{{- end -}}
{{- end -}}
{{- end }}

{{/* The job that keeps it, at the install and by the schedule. */}}
{{- define "preflight.certs" -}}
{{- if include "preflight.selfManaged" .root }}
{{- $schedule := dig "certificates" "schedule" (printf "%v */6 * * *" .minute) .root.Values.AsMap }}
{{- $between := include "preflight.daysBetweenRuns" $schedule | float64 }}
{{- $days := include "preflight.lifetimeDays" .root }}
{{- if gt (mulf $between 3) (float64 $days) }}
{{- fail (printf "certificates.schedule is %q, which may leave %v days between two runs, and certificates.lifetimeDays is %v: a certificate is renewed in the last third of its life, so it could end before anybody looks; have it looked after more often, or let it live longer." $schedule $between $days) }}
{{- end }}
---
{{- /* Not a hook: Helm runs post-install hooks only after what `--wait` waits for, and the webhook's pods wait for the Secret that this job makes.
The name changes with every revision and every change, of the chart too, for a Job cannot be changed and not everybody counts revisions. */}}
apiVersion: batch/v1
kind: Job
metadata:
  {{- $of := printf "%d %s %s" .root.Release.Revision (toJson .root.Values) (include "preflight.certsPod" .) | sha256sum | trunc 8 }}
  {{- include "preflight.metadata" (merge (dict "fixed" (printf "%s-%s" (include "preflight.fullname" .) $of)) .) | nindent 2 }}
spec:
  backoffLimit: 10
  {{- /* Long enough to be waited for and looked at; the CronJob keeps its own by number. */}}
  ttlSecondsAfterFinished: 86400
  template:
    {{- include "preflight.certsPod" . | nindent 4 }}
---
apiVersion: batch/v1
kind: CronJob
metadata:
  {{- include "preflight.metadata" (merge (dict "fixed" (include "preflight.fullname" . | trunc 52 | trimSuffix "-")) .) | nindent 2 }}
spec:
  schedule: {{ $schedule | quote }}
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: 3600
  successfulJobsHistoryLimit: 1
  failedJobsHistoryLimit: 2
  jobTemplate:
    spec:
      backoffLimit: 3
      activeDeadlineSeconds: 600
      template:
        {{- include "preflight.certsPod" . | nindent 8 }}
{{- include "preflight.networkPolicy" (merge (dict "closed" true) .) }}
{{- end }}
{{- end }}

{{- define "preflight.certsPod" -}}
{{- $values := .root.Values -}}
metadata:
  labels:
    {{- $labels := mergeOverwrite (dict) ($values.podLabels | default dict) (($values.certificates).podLabels | default dict) }}
    {{- include "preflight.labels" (set (omit . "labels") "labels" $labels) | nindent 4 }}
  {{- with mergeOverwrite (dict) ($values.podAnnotations | default dict) (($values.certificates).podAnnotations | default dict) }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- include "preflight.pod" . | nindent 2 }}
  restartPolicy: OnFailure
  containers:
    - name: certs
      {{- $requests := dict "cpu" "50m" "memory" "48Mi" "ephemeral-storage" "0" }}
      {{- $resources := dict "requests" $requests "limits" (dict "memory" "128Mi" "ephemeral-storage" "256Mi") }}
      {{- include "preflight.container" (merge (dict "resources" $resources) .) | nindent 6 }}
      args:
        - certs
        - --namespace={{ .root.Release.Namespace }}
        - --service={{ .service }}
        - --secret={{ .secret }}
        {{- range .kinds }}
        - --{{ . }}={{ $.configuration }}
        {{- end }}
        - --lifetime-days={{ include "preflight.lifetimeDays" .root }}
        - --wait-seconds=120
      {{- with $values.extraEnv }}
      env:
        {{- toYaml . | nindent 8 }}
      {{- end }}
{{- end }}
