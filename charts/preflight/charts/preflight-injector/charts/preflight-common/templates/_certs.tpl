{{/*
The webhook's certificate: kept by a job of ours, unless the values say that somebody else does. The job's part is a dict with "kinds", mutating and
validating, and the "configuration" of that name; the webhook's "service"; the "secret" that holds the certificate; the "minute" of each sixth hour at
which it is looked after; and "keeper", whose certificate it is in sentences.
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
The name changes with every revision and every change, for a Job cannot be changed. */}}
apiVersion: batch/v1
kind: Job
metadata:
  {{- $of := printf "%d %s" .root.Release.Revision (toJson .root.Values) | sha256sum | trunc 8 }}
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
  {{- include "preflight.metadata" . | nindent 2 }}
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

{{/* Its account, which owns the Secret: when the release goes, so does the Secret. */}}
{{- define "preflight.certsRights" -}}
{{- if include "preflight.selfManaged" .root }}
{{- $rules := printf "- apiGroups: [admissionregistration.k8s.io]\n  resources: %s\n  verbs: [get, patch]\n  resourceNames: [%s]" (include "preflight.configurations" .) .configuration }}
{{- /* A name cannot be asked for in a create; the policy says which, and of what type. */}}
{{- $local := printf "- apiGroups: [\"\"]\n  resources: [secrets]\n  verbs: [get, update]\n  resourceNames: [%s]\n- apiGroups: [\"\"]\n  resources: [secrets]\n  verbs: [create]" .secret }}
{{- include "preflight.account" (merge (dict "rules" $rules "local" $local) .) }}
{{- include "preflight.certsPolicies" . }}
{{- end }}
{{- end }}

{{/* Resources of the configurations' "kinds", JSON. */}}
{{- define "preflight.configurations" -}}
{{- $resources := list -}}
{{- range .kinds }}{{ $resources = append $resources (printf "%swebhookconfigurations" .) }}{{ end -}}
{{- toJson $resources -}}
{{- end }}

{{/*
RBAC knows no smaller right than `patch`, which could send every object of the cluster, Secrets too, to a webhook of somebody else's; and it cannot say
which Secret may be created. So the account that keeps the certificate is held here to what it does: one field, and one Secret of one type (another
type could make it a ServiceAccount's token).

A list is walked over that the installer wrote: its length is not a tenant's to choose. Fields that Kubernetes may add to a webhook one day have to be
added here.
*/}}
{{- define "preflight.certsPolicies" }}
{{- $user := include "preflight.user" . }}
{{- $secret := .secret }}
{{- $quoted := replace "'" "\\'" .keeper }}
{{- $about := dict "root" .root "component" .component "name" "certs-configuration" }}
{{- include "preflight.policy" $about }}
  matchConstraints:
    resourceRules:
      - apiGroups: [admissionregistration.k8s.io]
        apiVersions: [v1]
        resources: {{ include "preflight.configurations" . }}
        operations: [CREATE, UPDATE, DELETE]
  matchConditions:
    - name: the-certs-account
      expression: request.userInfo.username == '{{ $user }}'
  variables:
    - name: before
      expression: "request.operation == 'UPDATE' ? oldObject.?webhooks.orValue([]) : []"
    - name: after
      expression: "request.operation == 'UPDATE' ? object.?webhooks.orValue([]) : []"
    - name: changed
      expression: >-
        request.operation != 'UPDATE' ? ['the object as a whole'] :
        (variables.before.map(w, w.name) == variables.after.map(w, w.name) ? [] : ['the list of webhooks'])
        {{- range list "clientConfig.url" "clientConfig.service" "rules" "namespaceSelector" "objectSelector" "matchConditions" "failurePolicy" "matchPolicy"
            "sideEffects" "timeoutSeconds" "reinvocationPolicy" "admissionReviewVersions" }}
        + (variables.before.map(w, has(w.{{ . }})) == variables.after.map(w, has(w.{{ . }}))
        && variables.before.filter(w, has(w.{{ . }})).map(w, w.{{ . }})
        == variables.after.filter(w, has(w.{{ . }})).map(w, w.{{ . }}) ? [] : ['{{ . }}'])
        {{- end }}
        + (object.metadata.?annotations.orValue({}) == oldObject.metadata.?annotations.orValue({}) ? [] : ['annotations'])
        + {{ include "preflight.metadataChanged" . | nindent 8 | trim }}
  validations:
    - expression: variables.changed == []
      reason: Forbidden
      message: The account that keeps {{ .keeper }} certificate may change the caBundle of its webhooks and nothing else; find out who uses its ServiceAccount {{ $user }}.
      messageExpression: >-
        request.kind.kind + ' ' + request.name + ': the account that keeps {{ $quoted }} certificate may change the caBundle of its webhooks '
        + 'and nothing else, but this request changes ' + variables.changed.join(', ') + '; find out who uses its ServiceAccount {{ $user }}.'
{{- include "preflight.binding" $about }}
{{- $about = set $about "name" "certs-secret" }}
{{- include "preflight.policy" $about }}
  matchConstraints:
    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        resources: [secrets]
        operations: [CREATE, UPDATE]
  matchConditions:
    - name: the-certs-account
      expression: request.userInfo.username == '{{ $user }}'
  validations:
    - expression: object.metadata.?name.orValue('') == '{{ $secret }}' && object.?type.orValue('') == 'kubernetes.io/tls'
      reason: Forbidden
      message: The account that keeps {{ .keeper }} certificate may write the Secret {{ $secret }} of type kubernetes.io/tls and no other; find out who uses its ServiceAccount {{ $user }}.
      messageExpression: >-
        'Secret ' + request.namespace + '/' + object.metadata.?name.orValue('') + ' of type ' + object.?type.orValue('Opaque') + ': the account that '
        + 'keeps {{ $quoted }} certificate may write the Secret {{ $secret }} of type kubernetes.io/tls and no other; find out who uses its '
        + 'ServiceAccount {{ $user }}.'
{{- include "preflight.binding" $about }}
{{- end }}
