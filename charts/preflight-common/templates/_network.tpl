{{/* Who may read metrics, JSON. Without a list: everybody but pods of the namespaces that are labelled to be checked. */}}
{{- define "preflight.metricsFrom" -}}
{{- $unlabelled := dict "key" "nvsentinel.nvidia.com/preflight" "operator" "NotIn" "values" (list "enabled") -}}
{{- $default := list (dict "namespaceSelector" (dict "matchExpressions" (list $unlabelled))) -}}
{{- dig "networkPolicy" "metricsFrom" $default .Values.AsMap | toJson -}}
{{- end }}

{{/*
API servers call the admission port, and no selector says where they are (often on the host's network, in managed clusters outside of it), so it is
open to all: who calls is settled by TLS, and by webhook.clientCAConfigMap. A kubelet's probes come from the node, which NetworkPolicies never keep
out. Outgoing connections are not restricted: they go to the API server. "closed": nobody calls the pods.
*/}}
{{- define "preflight.networkPolicy" -}}
{{- $from := empty .closed | ternary (include "preflight.metricsFrom" .root | fromJsonArray) list -}}
{{- if dig "networkPolicy" "enabled" true .root.Values.AsMap }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "preflight.metadata" . | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "preflight.selector" . | nindent 6 }}
  policyTypes: [Ingress]
  {{- if or .admission $from }}
  ingress:
    {{- if .admission }}
    - ports:
        - port: admission
          protocol: TCP
    {{- end }}
    {{- with $from }}
    - from:
        {{- toYaml . | nindent 8 }}
      ports:
        - port: {{ $.port | default "metrics" }}
          protocol: TCP
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{/* For reviews and for metrics. Where nobody calls it is for metrics alone: each replica has numbers of its own, and a scraper has to see all of them. */}}
{{- define "preflight.service" }}
{{- $own := .root.Values.service | default dict }}
---
apiVersion: v1
kind: Service
metadata:
  {{- include "preflight.metadata" (merge (dict "annotations" $own.annotations) .) | nindent 2 }}
spec:
  {{- with include "preflight.set" (pick $own "ipFamilyPolicy" "ipFamilies") }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- if not .admission }}
  clusterIP: None
  {{- end }}
  selector:
    {{- include "preflight.selector" . | nindent 4 }}
  ports:
    {{- if .admission }}
    - name: admission
      port: 443
      targetPort: admission
    {{- end }}
    - name: metrics
      port: 8080
      targetPort: {{ .port | default "metrics" }}
{{- end }}

{{- define "preflight.budget" -}}
{{- $own := .root.Values.podDisruptionBudget | default dict }}
{{- if and (gt (include "preflight.replicas" . | int) 1) (dig "enabled" true $own) }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "preflight.metadata" . | nindent 2 }}
spec:
  {{- if kindIs "invalid" $own.minAvailable }}
  maxUnavailable: {{ kindIs "invalid" $own.maxUnavailable | ternary 1 $own.maxUnavailable }}
  {{- else }}
  minAvailable: {{ $own.minAvailable }}
  {{- end }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "preflight.selector" . | nindent 6 }}
{{- end }}
{{- end }}

{{/* What calls one webhook, its Service's "path", and of which objects, for all of them alike. The CA bundle is not set: it follows the certificate, and an upgrade must not undo it. */}}
{{- define "preflight.clientConfig" -}}
clientConfig:
  service:
    name: {{ include "preflight.fullname" . }}
    namespace: {{ .root.Release.Namespace | quote }}
    path: {{ .path }}
    port: 443
{{- with (.root.Values.webhook).objectSelector }}
objectSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A replicated part as a whole: what runs it, what keeps it running, how it is reached. */}}
{{- define "preflight.part" }}
---
{{ include "preflight.workload" . }}
{{- include "preflight.budget" . }}
{{- include "preflight.service" . }}
{{- include "preflight.networkPolicy" . }}
{{- end }}
