{{- define "preflight-gang.notes" -}}
Preflight's gang controller is installed in namespace {{ .Release.Namespace }}.

It acts on pods that the injector has stamped, and on no others. Look at it:

  kubectl -n {{ .Release.Namespace }} rollout status deployment/{{ include "preflight-gang.name" . }}
  kubectl get pods -A -l preflight.nvsentinel.nvidia.com/gang          # members of gangs
  kubectl get configmaps -A -l app.kubernetes.io/managed-by=preflight-gang   # one for each gang that was sealed

What the API server refuses from now on, and why, stands in its answers; the policies are these:

  kubectl get validatingadmissionpolicies -l app.kubernetes.io/name=preflight-gang,app.kubernetes.io/instance={{ .Release.Name }}
{{- end }}
