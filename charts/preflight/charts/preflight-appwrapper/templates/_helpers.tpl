{{- define "preflight-appwrapper.name" -}}
{{- .Values.fullnameOverride | default "preflight-appwrapper" -}}
{{- end }}

{{/* Of both webhook configurations, whatever the release is called: it has to sort before `kueue-`. */}}
{{- define "preflight-appwrapper.configuration" -}}
appwrapper-preflight
{{- end }}

{{- define "preflight-appwrapper.image" -}}
{{- $image := .Values.image | default dict -}}
{{- $repository := $image.repository | default "preflight-appwrapper" -}}
{{ if $image.digest }}{{ printf "%s@%s" $repository $image.digest | quote }}{{ else }}{{ printf "%s:%s" $repository ($image.tag | default .Chart.AppVersion) | quote }}{{ end }}
{{- end }}

{{- define "preflight-appwrapper.selector" -}}
app.kubernetes.io/name: preflight-appwrapper
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "preflight-appwrapper.labels" -}}
{{ include "preflight-appwrapper.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: preflight
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Metadata of an object: (dict "root" . "name" suffix "component" component "everywhere" whether it has no namespace). */}}
{{- define "preflight-appwrapper.metadata" -}}
name: {{ include "preflight-appwrapper.name" .root }}{{ with .name }}-{{ . }}{{ end }}
{{- if not .everywhere }}
namespace: {{ .root.Release.Namespace }}
{{- end }}
labels:
  {{- include "preflight-appwrapper.labels" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* A map of the values without the keys that somebody has set to null. */}}
{{- define "preflight-appwrapper.set" -}}
{{- $set := dict -}}
{{- range $key, $value := . }}{{ if ne (kindOf $value) "invalid" }}{{ $_ := set $set $key $value }}{{ end }}{{ end -}}
{{- if $set -}}{{- toYaml $set -}}{{- end -}}
{{- end }}

{{/* A copy without null, at any depth of maps. */}}
{{- define "preflight-appwrapper.pruned" -}}
{{- if kindIs "map" . -}}
{{- $made := dict -}}
{{- range $key, $value := . -}}
{{- if not (kindIs "invalid" $value) -}}{{- $_ := set $made $key (include "preflight-appwrapper.pruned" $value | fromJson).it -}}{{- end -}}
{{- end -}}
{{- dict "it" $made | toJson -}}
{{- else -}}
{{- dict "it" . | toJson -}}
{{- end -}}
{{- end }}

{{- define "preflight-appwrapper.replicas" -}}
{{- dig "replicas" 2 .Values.AsMap -}}
{{- end }}

{{- define "preflight-appwrapper.labels-nodes" -}}
{{- if dig "labeler" "enabled" false .Values.AsMap -}}yes{{- end -}}
{{- end }}

{{- define "preflight-appwrapper.monitors" -}}
{{- if dig "autopilot" "monitorNodes" true .Values.AsMap -}}yes{{- end -}}
{{- end }}

{{- define "preflight-appwrapper.label-key" -}}
{{- dig "nodeHealth" "key" "preflight.nvsentinel.nvidia.com/gpu-health" .Values.AsMap -}}
{{- end }}

{{/* Keys of the values that are the service's configuration; every other key says how it is deployed. */}}
{{- define "preflight-appwrapper.config" -}}
{{- $own := dict -}}
{{- range $key, $value := pick .Values "faultTolerance" "autopilot" "defaultQueueName" "schedulerName" "failureRules" "nodeHealth" "evacuationBrake" "trustedUsers" "leaseDuration" "logLevel" -}}
{{- if not (kindIs "invalid" $value) -}}{{- $_ := set $own $key (include "preflight-appwrapper.pruned" $value | fromJson).it -}}{{- end -}}
{{- end -}}
{{- $shared := ((.Values.global).preflight).sickNodeConditions -}}
{{- if not (kindIs "invalid" $shared) -}}{{- $_ := set $own "nodeHealth" (set ($own.nodeHealth | default dict) "conditions" $shared) -}}{{- end -}}
{{- $labels := include "preflight-appwrapper.labels-nodes" . -}}
{{- $chosen := ((.Values.global).preflight).gpuClaimResource -}}
{{- if or $labels $chosen -}}
{{- $taint := dict "key" (include "preflight-appwrapper.label-key" .) "value" (dig "nodeHealth" "value" "EVICT" .Values.AsMap) "effect" "NoExecute" -}}
{{- $pilot := $own.autopilot | default dict -}}
{{- $key := "autopilot.ibm.com/gpuhealth" -}}
{{- $autopilot := list (dict "key" $key "value" "ERR" "effect" "NoSchedule") (dict "key" $key "value" "EVICT" "effect" "NoExecute") -}}
{{- /* Where nothing is said, what the service itself begins with. */ -}}
{{- $taints := $pilot.resourceTaints | default (dict "nvidia.com/gpu" $autopilot) -}}
{{- $of := index $taints "nvidia.com/gpu" | default list -}}
{{- if and $labels (not (has $taint $of)) -}}{{- $of = append $of $taint -}}{{- $_ := set $taints "nvidia.com/gpu" $of -}}{{- end -}}
{{- /* Pods of preflight-gpu-scheduler have GPUs of the same nodes, by another name. */ -}}
{{- if and $chosen (not (hasKey $taints $chosen)) -}}{{- $_ := set $taints $chosen $of -}}{{- end -}}
{{- $_ := set $pilot "resourceTaints" $taints -}}
{{- $_ := set $own "autopilot" $pilot -}}
{{- end -}}
{{- $own | toYaml -}}
{{- end }}

{{- define "preflight-appwrapper.wrapped" -}}
{{- $kinds := .Values.wrappedKinds | default list -}}
{{- toJson $kinds -}}
{{- end }}

{{/* As the API server knows an account: (dict "root" . "name" suffix). */}}
{{- define "preflight-appwrapper.user" -}}
{{ printf "system:serviceaccount:%s:%s-%s" .root.Release.Namespace (include "preflight-appwrapper.name" .root) .name }}
{{- end }}

{{/* Namespaces whose AppWrappers nobody judges, and of which nothing is created. */}}
{{- define "preflight-appwrapper.excluded" -}}
{{- concat (list .Release.Namespace "kube-system") ((.Values.webhook).excludeNamespaces | default list) | uniq | sortAlpha | toYaml -}}
{{- end }}

{{- define "preflight-appwrapper.secret" -}}
{{ include "preflight-appwrapper.name" . }}-tls
{{- end }}

{{/* What the pods of all parts have in common: (dict "root" . "component" component). */}}
{{- define "preflight-appwrapper.pod-metadata" -}}
labels:
  {{- include "preflight-appwrapper.labels" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .component }}
  {{- with .root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  {{- /* The configuration is read at the start: another one means other pods. */}}
  checksum/config: {{ include "preflight-appwrapper.config" .root | sha256sum }}
  {{- with .root.Values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "preflight-appwrapper.pod-where" -}}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "preflight-appwrapper.set" .Values.podSecurityContext }}
securityContext:
  {{- . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "preflight-appwrapper.spread" -}}
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - topologyKey: {{ . }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    matchLabelKeys: [pod-template-hash]
    labelSelector:
      matchLabels:
        {{- include "preflight-appwrapper.selector" $.root | nindent 8 }}
        app.kubernetes.io/component: {{ $.component }}
  {{- end }}
{{- end }}

{{/* Image, probes, security and what it may use, of a container that has the plain port. */}}
{{- define "preflight-appwrapper.container" -}}
image: {{ include "preflight-appwrapper.image" . }}
{{- with .Values.imagePullPolicy }}
imagePullPolicy: {{ . }}
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
{{- with include "preflight-appwrapper.set" .Values.securityContext }}
securityContext:
  {{- . | nindent 2 }}
{{- end }}
{{- with .Values.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* An account and what it may: (dict "root" . "name" suffix "component" component "rules" cluster rules, YAML). */}}
{{- define "preflight-appwrapper.account" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "preflight-appwrapper.metadata" . | nindent 2 }}
{{- /* The pods ask for their token themselves. */}}
automountServiceAccountToken: false
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  {{- include "preflight-appwrapper.metadata" (merge (dict "everywhere" true) .) | nindent 2 }}
rules:
  {{- .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  {{- include "preflight-appwrapper.metadata" (merge (dict "everywhere" true) .) | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ include "preflight-appwrapper.name" .root }}-{{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ include "preflight-appwrapper.name" .root }}-{{ .name }}
    namespace: {{ .root.Release.Namespace }}
{{- end }}

{{/* Leader election: (dict "root" . "name" suffix "component" component "lease" name). */}}
{{- define "preflight-appwrapper.lease" -}}
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata:
  name: {{ .lease }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "preflight-appwrapper.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  {{- include "preflight-appwrapper.metadata" . | nindent 2 }}
rules:
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    verbs: [get, update]
    resourceNames: [{{ .lease }}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  {{- include "preflight-appwrapper.metadata" . | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ include "preflight-appwrapper.name" .root }}-{{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ include "preflight-appwrapper.name" .root }}-{{ .name }}
    namespace: {{ .root.Release.Namespace }}
{{- end }}

{{- define "preflight-appwrapper.budget" -}}
{{- if gt (include "preflight-appwrapper.replicas" .root | int) 1 }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "preflight-appwrapper.metadata" . | nindent 2 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "preflight-appwrapper.selector" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .component }}
{{- end }}
{{- end }}

{{- define "preflight-appwrapper.binding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  {{- include "preflight-appwrapper.metadata" (merge (dict "everywhere" true) .) | nindent 2 }}
spec:
  policyName: {{ include "preflight-appwrapper.name" .root }}-{{ .name }}
  validationActions: [Deny]
{{- end }}
