{{- define "preflight.image" -}}
{{- $image := .Values.image | default dict -}}
{{- /* The injector's image is called after its service. */ -}}
{{- $repository := $image.repository | default (eq .Chart.Name "preflight-injector" | ternary "preflight-webhook" .Chart.Name) -}}
{{- $reference := empty $image.digest | ternary (printf "%s:%s" $repository ($image.tag | default .Chart.AppVersion)) (printf "%s@%v" $repository $image.digest) -}}
{{- include "preflight.fromRegistry" (dict "root" . "image" $reference) | quote -}}
{{- end }}

{{/* The "image" of global.imageRegistry, in the place of the registry that its reference names, if any. */}}
{{- define "preflight.fromRegistry" -}}
{{- with (.root.Values.global).imageRegistry -}}
{{- trimSuffix "/" . }}/{{ regexReplaceAll `^([^/]*[.:][^/]*|localhost)/` $.image "" -}}
{{- else -}}
{{- .image -}}
{{- end -}}
{{- end }}

{{/* How the part's pods are deployed, JSON: "values", where the chart has some for this part, else the chart's own. */}}
{{- define "preflight.deployed" -}}
{{- hasKey . "values" | ternary (.values | default dict) .root.Values | toJson -}}
{{- end }}

{{- define "preflight.replicas" -}}
{{- dig "replicas" 2 (include "preflight.deployed" . | fromJson) -}}
{{- end }}

{{/*
A Deployment, or the "kind" DaemonSet, of one part, whose pods are named by its component. Beside what "preflight.pod", ".container", ".serving"
and ".volumes" take: "args" of its one container, or "containers", the name of a template that makes them and is given the same dict;
"surge": a DaemonSet whose next pod starts before the last one goes.
*/}}
{{- define "preflight.workload" -}}
{{- $values := include "preflight.deployed" . | fromJson -}}
{{- $onHost := and (not .kind) .root.Values.hostNetwork (or .admission (not .root.Values.webhook)) -}}
apiVersion: apps/v1
kind: {{ .kind | default "Deployment" }}
metadata:
  {{- include "preflight.metadata" . | nindent 2 }}
spec:
  {{- if not .kind }}
  replicas: {{ include "preflight.replicas" . }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "preflight.selector" . | nindent 6 }}
  {{- if or .surge (not .kind) }}
  {{ empty .kind | ternary "strategy" "updateStrategy" }}:
    rollingUpdate:
      {{- /* A successor answers, or has read the cluster, before the one it follows goes; on a node's network it cannot where every
      node has one, whose port it needs. */}}
      maxUnavailable: {{ empty $onHost | ternary 0 1 }}
      maxSurge: 1
  {{- end }}
  template:
    metadata:
      labels:
        {{- include "preflight.labels" (set (omit . "labels") "labels" $values.podLabels) | nindent 8 }}
      {{- /* The configuration is read at the start, or reaches a running pod a minute later: another one means other pods. */}}
      {{- $annotations := $values.podAnnotations | default dict }}
      {{- if .config }}{{ $annotations = merge (dict "checksum/config" (include (printf "%s.config" .root.Chart.Name) .root | sha256sum)) $annotations }}{{ end }}
      {{- with $annotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      {{- include "preflight.pod" . | nindent 6 }}
      {{- if not .kind }}
      {{- if $onHost }}
      hostNetwork: true
      dnsPolicy: ClusterFirstWithHostNet
      {{- end }}
      {{- $spread := .root.Values.topologySpreadConstraints }}
      {{- if kindIs "invalid" $spread }}{{ $spread = list (dict "topologyKey" "kubernetes.io/hostname") (dict "topologyKey" "topology.kubernetes.io/zone") }}{{ end }}
      {{- with $spread }}
      topologySpreadConstraints:
        {{- range . }}
        {{- $selector := dict "matchLabels" (include "preflight.selector" $ | fromYaml) }}
        {{- $usual := dict "maxSkew" 1 "whenUnsatisfiable" "ScheduleAnyway" "matchLabelKeys" (list "pod-template-hash") "labelSelector" $selector }}
        - {{- toYaml (mergeOverwrite $usual .) | nindent 10 }}
        {{- end }}
      {{- end }}
      {{- end }}
      {{- include (.containers | default "preflight.containers") . | nindent 6 }}
{{- end }}

{{/*
What all pods have under `spec`: "token" false for those that ask the API server for nothing, and "admission" true for those that it asks. They go
on answering for ten seconds, and end what is under way; others give their lease back, so that the next one leads at once.
*/}}
{{- define "preflight.pod" -}}
{{- $values := include "preflight.deployed" . | fromJson -}}
serviceAccountName: {{ include "preflight.fullname" . }}
automountServiceAccountToken: {{ hasKey . "token" | ternary .token true }}
terminationGracePeriodSeconds: {{ empty .admission | ternary 30 45 }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $values.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with include "preflight.set" $values.podSecurityContext }}
securityContext:
  {{- . | nindent 2 }}
{{- end }}
{{- range $key, $value := dict "imagePullSecrets" .root.Values.imagePullSecrets "nodeSelector" $values.nodeSelector "affinity" $values.affinity "tolerations" $values.tolerations }}
{{- with $value }}
{{ $key }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* What all containers of our image have; "security" and "resources" where they are not those of the values. */}}
{{- define "preflight.container" -}}
{{- $values := include "preflight.deployed" . | fromJson -}}
image: {{ include "preflight.image" .root }}
{{- with .root.Values.imagePullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- with include "preflight.set" (.security | default $values.securityContext) }}
securityContext:
  {{- . | nindent 2 }}
{{- end }}
{{- with .resources | default $values.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
Variables, ports and probes of a container that serves: "fields" of its pod by the variable's name, "env" as a container has them, "port" the name of
the plain port, "probeSeconds" how long an answer about its health may take. Our programs read where they listen from LISTEN_HOST, LISTEN_PLAIN and
LISTEN_TLS; Kubernetes makes variables of Services that end otherwise.
*/}}
{{- define "preflight.plainPort" -}}
{{- .Values.metricsPort | default 8080 -}}
{{- end }}

{{- define "preflight.tlsPort" -}}
{{- (.Values.webhook).port | default 8443 -}}
{{- end }}

{{- define "preflight.serving" -}}
{{- $port := .port | default "metrics" -}}
env:
  {{- range $name, $path := merge (dict "POD_NAME" "metadata.name" "POD_NAMESPACE" "metadata.namespace") (.fields | default dict) }}
  - name: {{ $name }}
    valueFrom:
      fieldRef:
        fieldPath: {{ $path }}
  {{- end }}
  {{- with .root.Values.bindAddress }}
  - name: LISTEN_HOST
    value: {{ . | quote }}
  {{- end }}
  {{- with .root.Values.metricsPort }}
  - name: LISTEN_PLAIN
    value: {{ . | quote }}
  {{- end }}
  {{- with (.root.Values.webhook).port }}
  - name: LISTEN_TLS
    value: {{ . | quote }}
  {{- end }}
  {{- with concat (.env | default list) (.root.Values.extraEnv | default list) }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  - name: {{ $port }}
    containerPort: {{ include "preflight.plainPort" .root }}
  {{- if .admission }}
  - name: admission
    containerPort: {{ include "preflight.tlsPort" .root }}
  {{- end }}
startupProbe:
  httpGet:
    path: /healthz
    port: {{ $port }}
  periodSeconds: 1
  timeoutSeconds: {{ .probeSeconds | default 1 }}
  failureThreshold: 60
livenessProbe:
  httpGet:
    path: /healthz
    port: {{ $port }}
  periodSeconds: 10
  timeoutSeconds: {{ .probeSeconds | default 5 }}
  failureThreshold: 6
readinessProbe:
  httpGet:
    path: /readyz
    port: {{ $port }}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end }}

{{/*
Files of a pod, each with its "name", "path" and what it is made of, JSON: of "config", "tls" and "clientCA" where the dict has a folder for them, and
"files". "keys" are those of the "secret" with the certificate that the pod sees: by default the certificate and its key.
*/}}
{{- define "preflight.files" -}}
{{- $files := .files | default list -}}
{{- with .config -}}
{{- $files = append $files (dict "name" "config" "path" . "of" (dict "configMap" (dict "name" (include "preflight.name" $.root)))) -}}
{{- end -}}
{{- with .tls -}}
{{- $items := list -}}
{{- range $.keys | default (list "tls.crt" "tls.key") -}}{{- $items = append $items (dict "key" . "path" .) -}}{{- end -}}
{{- /* Until the certs job has made this Secret, the pod waits. */ -}}
{{- $secret := dict "secretName" $.secret "defaultMode" 0440 "items" $items -}}
{{- $files = append $files (dict "name" ($.tlsName | default "tls") "path" . "of" (dict "secret" $secret)) -}}
{{- end -}}
{{- if and .clientCA (.root.Values.webhook).clientCAConfigMap -}}
{{- $files = append $files (dict "name" "client-ca" "path" .clientCA "of" (dict "configMap" (dict "name" .root.Values.webhook.clientCAConfigMap))) -}}
{{- end -}}
{{- toJson $files -}}
{{- end }}

{{- define "preflight.mounts" -}}
volumeMounts:
  {{- range include "preflight.files" . | fromJsonArray }}
  - name: {{ .name }}
    mountPath: {{ .path }}
    readOnly: true
  {{- end }}
{{- end }}

{{- define "preflight.volumes" -}}
volumes:
  {{- range include "preflight.files" . | fromJsonArray }}
  - name: {{ .name }}
    {{- toYaml .of | nindent 4 }}
  {{- end }}
{{- end }}

{{/* The one container of most pods, and its files. */}}
{{- define "preflight.containers" -}}
containers:
  - name: {{ .component }}
    {{- include "preflight.container" . | nindent 4 }}
    args:
      {{- toYaml .args | nindent 6 }}
      {{- if and .clientCA (.root.Values.webhook).clientCAConfigMap }}
      - --client-ca={{ .clientCA }}/ca.crt
      {{- end }}
    {{- include "preflight.serving" . | nindent 4 }}
    {{- include "preflight.mounts" . | nindent 4 }}
{{ include "preflight.volumes" . }}
{{- end }}
