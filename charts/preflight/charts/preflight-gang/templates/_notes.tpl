{{- define "preflight-gang.notes" -}}
Preflight's gang controller is installed in namespace {{ .Release.Namespace }}. It counts the results of: {{ include "preflight-gang.checks" . | fromJsonArray | join ", " }}.

It needs preflight-injector, and acts only on the pods that the injector has stamped. See that it works: one replica holds the lease.

  kubectl -n {{ .Release.Namespace }} rollout status deployment/{{ include "preflight.name" . }}
  kubectl -n {{ .Release.Namespace }} get lease preflight-gang -o jsonpath='{.spec.holderIdentity}{"\n"}'
  kubectl get pods -A -l preflight.nvsentinel.nvidia.com/gang          # members of gangs
  kubectl get configmaps -A -l app.kubernetes.io/managed-by=preflight-gang   # one for each gang that was sealed

Admission policies confine it and keep its records. When a request is refused, its error message says why. List them:

  kubectl get validatingadmissionpolicies -l app.kubernetes.io/name=preflight-gang,app.kubernetes.io/instance={{ .Release.Name }}
{{- include "preflight.keptNotes" (dict "root" .) }}
{{- end }}
