{{/*
Head of a ValidatingAdmissionPolicy; what follows is its spec, indented by two. One that cannot be evaluated must not open what it closes, so all
fail closed but where "failurePolicy" says otherwise.
*/}}
{{- define "preflight.policy" }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  {{- include "preflight.metadata" (merge (dict "cluster" true) .) | nindent 2 }}
spec:
  failurePolicy: {{ .failurePolicy | default "Fail" }}
{{- end }}

{{/* Its binding: with what becomes of a request that it does not let pass ("actions"), and in which namespaces ("namespaceSelector"). */}}
{{- define "preflight.binding" }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  {{- include "preflight.metadata" (merge (dict "cluster" true) .) | nindent 2 }}
spec:
  policyName: {{ include "preflight.fullname" . }}
  validationActions: {{ .actions | default (list "Deny") | toJson }}
  {{- with .namespaceSelector }}
  matchResources:
    namespaceSelector:
      {{- toYaml . | nindent 6 }}
  {{- end }}
{{- end }}

{{/* CEL: true for whoever is neither "user" nor exempt. */}}
{{- define "preflight.notExempt" -}}
!(request.userInfo.username in {{ prepend ((.root.Values.protection).exemptUsers | default list) .user | toJson }})
{{- with (.root.Values.protection).exemptGroups }} && !request.userInfo.?groups.orValue([]).exists(g, g in {{ toJson . }}){{ end }}
{{- end }}
