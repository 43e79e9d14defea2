{{- define "preflight-mnnvl.name" -}}
{{- .Values.fullnameOverride | default "preflight-mnnvl" -}}
{{- end }}

{{- define "preflight-mnnvl.webhook" -}}
{{ include "preflight-mnnvl.name" . }}-webhook
{{- end }}

{{- define "preflight-mnnvl.controller" -}}
{{ include "preflight-mnnvl.name" . }}-controller
{{- end }}

{{- define "preflight-mnnvl.selector" -}}
app.kubernetes.io/name: preflight-mnnvl
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "preflight-mnnvl.labels" -}}
{{ include "preflight-mnnvl.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: preflight
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "preflight-mnnvl.image" -}}
{{- $image := .Values.image | default dict -}}
{{- $repository := $image.repository | default "preflight-mnnvl" -}}
{{ if $image.digest }}{{ printf "%s@%s" $repository $image.digest | quote }}{{ else }}{{ printf "%s:%s" $repository ($image.tag | default .Chart.AppVersion) | quote }}{{ end }}
{{- end }}

{{- define "preflight-mnnvl.secret" -}}
{{- (.Values.certificates).secretName | default (printf "%s-tls" (include "preflight-mnnvl.webhook" .)) -}}
{{- end }}

{{- define "preflight-mnnvl.selfManaged" -}}
{{- if dig "certificates" "selfManaged" true .Values.AsMap -}}yes{{- end -}}
{{- end }}

{{- define "preflight-mnnvl.replicas" -}}
{{- dig "replicas" 2 .Values.AsMap -}}
{{- end }}

{{- define "preflight-mnnvl.literal" -}}
{{- if eq (.Values.mode | default "driver") "literal" -}}yes{{- end -}}
{{- end }}

{{/* A map of the values without the keys that somebody has set to null. */}}
{{- define "preflight-mnnvl.set" -}}
{{- $set := dict -}}
{{- range $key, $value := . }}{{ if ne (kindOf $value) "invalid" }}{{ $_ := set $set $key $value }}{{ end }}{{ end -}}
{{- if $set -}}{{- toYaml $set -}}{{- end -}}
{{- end }}

{{/* Keys of the values that are the configuration; every other key says how it is deployed. */}}
{{- define "preflight-mnnvl.config" -}}
{{- $own := dict "instance" (.Values.instance | default .Release.Name) -}}
{{- range $key, $value := pick .Values "mode" "feature" "onUnsupported" "requireFabricNodes" "placement" "gpuResources" "gpuDeviceClasses" "leaseSeconds" "writes"
    "logLevel" -}}
{{- if not (kindIs "invalid" $value) -}}{{- $_ := set $own $key $value -}}{{- end -}}
{{- end -}}
{{- toYaml $own -}}
{{- end }}

{{/* The controller as the API server knows it. */}}
{{- define "preflight-mnnvl.user" -}}
{{ printf "system:serviceaccount:%s:%s" .Release.Namespace (include "preflight-mnnvl.controller" .) }}
{{- end }}

{{/* Who may read metrics. Without a list: everybody but pods of the namespaces that are labelled to be checked. */}}
{{- define "preflight-mnnvl.metricsFrom" -}}
{{- $unlabelled := dict "key" "nvsentinel.nvidia.com/preflight" "operator" "NotIn" "values" (list "enabled") -}}
{{- $default := list (dict "namespaceSelector" (dict "matchExpressions" (list $unlabelled))) -}}
{{- dig "networkPolicy" "metricsFrom" $default .Values.AsMap | toYaml -}}
{{- end }}

{{/* What the pods of both services, and of the job that keeps the certificate, have in common; under `spec`. */}}
{{- define "preflight-mnnvl.pod" -}}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "preflight-mnnvl.set" .Values.podSecurityContext }}
securityContext:
  {{- . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Of a container of ours. */}}
{{- define "preflight-mnnvl.container" -}}
image: {{ include "preflight-mnnvl.image" . }}
{{- with .Values.imagePullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- with include "preflight-mnnvl.set" .Values.securityContext }}
securityContext:
  {{- . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A Deployment of `part` (controller or webhook) of `root`, with `args`, `env`, `ports`, `mounts` and `volumes` of its own as text. */}}
{{- define "preflight-mnnvl.deployment" -}}
{{- $root := .root }}
{{- $name := printf "%s-%s" (include "preflight-mnnvl.name" .root) .part }}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "preflight-mnnvl.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .part }}
spec:
  replicas: {{ include "preflight-mnnvl.replicas" .root }}
  selector:
    matchLabels:
      {{- include "preflight-mnnvl.selector" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .part }}
  strategy:
    rollingUpdate:
      {{- /* An upgrade never takes a replica away before its successor answers, or has read the cluster. */}}
      maxUnavailable: 0
      maxSurge: 1
  template:
    metadata:
      labels:
        {{- include "preflight-mnnvl.labels" .root | nindent 8 }}
        app.kubernetes.io/component: {{ .part }}
        {{- with .root.Values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        {{- /* The configuration is read at the start: another one means other pods. */}}
        checksum/config: {{ include "preflight-mnnvl.config" .root | sha256sum }}
        {{- with .root.Values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ $name }}
      automountServiceAccountToken: true
      {{- /* Time to finish what is under way, and to give the lease back. */}}
      terminationGracePeriodSeconds: 45
      {{- include "preflight-mnnvl.pod" .root | nindent 6 }}
      {{- with .root.Values.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: {{ .part }}
          {{- include "preflight-mnnvl.container" .root | nindent 10 }}
          args:
            - {{ .part }}
            - --config=/etc/preflight-mnnvl/config/config.yaml
            {{- with .args }}
            {{- . | nindent 12 }}
            {{- end }}
          env:
            - name: POD_NAME
              valueFrom:
                fieldRef:
                  fieldPath: metadata.name
            - name: POD_NAMESPACE
              valueFrom:
                fieldRef:
                  fieldPath: metadata.namespace
            - name: POD_SERVICE_ACCOUNT
              valueFrom:
                fieldRef:
                  fieldPath: spec.serviceAccountName
          ports:
            - name: metrics
              containerPort: 8080
            {{- with .ports }}
            {{- . | nindent 12 }}
            {{- end }}
          startupProbe:
            httpGet:
              path: /healthz
              port: metrics
            periodSeconds: 1
            failureThreshold: 60
          livenessProbe:
            httpGet:
              path: /healthz
              port: metrics
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            httpGet:
              path: /readyz
              port: metrics
            periodSeconds: 2
            timeoutSeconds: 2
            failureThreshold: 2
          {{- with .root.Values.resources }}
          resources:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          volumeMounts:
            - name: config
              mountPath: /etc/preflight-mnnvl/config
              readOnly: true
            {{- with .mounts }}
            {{- . | nindent 12 }}
            {{- end }}
      volumes:
        - name: config
          configMap:
            name: {{ include "preflight-mnnvl.name" .root }}
        {{- with .volumes }}
        {{- . | nindent 8 }}
        {{- end }}
      topologySpreadConstraints:
        {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
        - topologyKey: {{ . }}
          maxSkew: 1
          whenUnsatisfiable: ScheduleAnyway
          matchLabelKeys: [pod-template-hash]
          labelSelector:
            matchLabels:
              {{- include "preflight-mnnvl.selector" $root | nindent 14 }}
              app.kubernetes.io/component: {{ $.part }}
        {{- end }}
{{- end }}

{{- define "preflight-mnnvl.lifetimeDays" -}}
{{- dig "certificates" "lifetimeDays" 90 .Values.AsMap -}}
{{- end }}

{{- define "preflight-mnnvl.schedule" -}}
{{- dig "certificates" "schedule" "37 */6 * * *" .Values.AsMap -}}
{{- end }}

{{- define "preflight-mnnvl.binding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ include "preflight-mnnvl.name" .root }}-{{ .name }}
  labels:
    {{- include "preflight-mnnvl.labels" .root | nindent 4 }}
    app.kubernetes.io/component: certs
spec:
  policyName: {{ include "preflight-mnnvl.name" .root }}-{{ .name }}
  validationActions: [Deny]
{{- end }}

{{/* Pod template of the job that keeps the certificate: the same for the install and for the schedule. */}}
{{- define "preflight-mnnvl.certsPod" -}}
metadata:
  labels:
    {{- include "preflight-mnnvl.labels" . | nindent 4 }}
    app.kubernetes.io/component: certs
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "preflight-mnnvl.name" . }}-certs
  restartPolicy: OnFailure
  {{- include "preflight-mnnvl.pod" . | nindent 2 }}
  containers:
    - name: certs
      {{- include "preflight-mnnvl.container" . | nindent 6 }}
      args:
        - certs
        - --namespace={{ .Release.Namespace }}
        - --service={{ include "preflight-mnnvl.webhook" . }}
        - --secret={{ include "preflight-mnnvl.secret" . }}
        - --mutating={{ include "preflight-mnnvl.name" . }}
        - --validating={{ include "preflight-mnnvl.name" . }}
        - --lifetime-days={{ include "preflight-mnnvl.lifetimeDays" . }}
        - --wait-seconds=120
      resources:
        requests:
          cpu: 50m
          memory: 48Mi
          ephemeral-storage: "0"
        limits:
          memory: 128Mi
          ephemeral-storage: 256Mi
{{- end }}
