{{/*
The part's account and its "rules" in the whole cluster, YAML, if any. "local": its rules in the release's own namespace.
Its pods ask for their token themselves.
*/}}
{{- define "preflight.account" }}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "preflight.metadata" (merge (dict "annotations" (.root.Values.serviceAccount).annotations) .) | nindent 2 }}
automountServiceAccountToken: false
{{- with .rules }}
{{- include "preflight.role" (dict "about" $ "kind" "ClusterRole" "rules" .) }}
{{- end }}
{{- with .local }}
{{- include "preflight.role" (dict "about" $ "kind" "Role" "rules" .) }}
{{- end }}
{{- end }}

{{/* A role of "kind" with "rules", and its binding to the account of the part that is called "about". */}}
{{- define "preflight.role" }}
{{- $metadata := include "preflight.metadata" (merge (dict "cluster" (eq .kind "ClusterRole")) .about) }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}
metadata:
  {{- $metadata | nindent 2 }}
rules:
  {{- .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}Binding
metadata:
  {{- $metadata | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ include "preflight.fullname" .about }}
subjects:
  {{- include "preflight.subject" .about | nindent 2 }}
{{- end }}

{{- define "preflight.subject" -}}
- kind: ServiceAccount
  name: {{ include "preflight.fullname" . }}
  namespace: {{ .root.Release.Namespace | quote }}
{{- end }}

{{/*
The "lease" by which one of the part's replicas leads, whatever the release is called: two would get in each other's way. Made here so that it goes
with the release; who holds it is written by the replicas, and no upgrade touches that.
*/}}
{{- define "preflight.lease" }}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata:
  {{- include "preflight.metadata" (merge (dict "fixed" .lease) .) | nindent 2 }}
{{- end }}

{{/* Rules of who may hold it, and make it again where somebody has deleted it: a name cannot be asked for in a create. */}}
{{- define "preflight.leaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, update]
  resourceNames: [{{ .lease }}]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
{{- end }}

{{/*
People: the cluster's own roles gather those of these names. "kinds" of group "group" with whether people write them; where they write none, only
`view` is there. Status is the controllers' alone.
*/}}
{{- define "preflight.people" }}
{{- $read := list "get" "list" "watch" }}
{{- $write := concat $read (list "create" "update" "patch" "delete" "deletecollection") }}
{{- range $role := has true (values .kinds) | ternary (list "view" "edit" "admin") (list "view") }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  {{- $gathered := dict (printf "rbac.authorization.k8s.io/aggregate-to-%s" $role) "true" }}
  {{- include "preflight.metadata" (dict "root" $.root "name" $role "component" "people" "cluster" true "labels" $gathered) | nindent 2 }}
rules:
  {{- range $kind, $written := $.kinds }}
  - apiGroups: [{{ $.group }}]
    resources: [{{ $kind }}]
    verbs: {{ and $written (ne $role "view") | ternary $write $read | toJson }}
  {{- end }}
{{- end }}
{{- end }}
