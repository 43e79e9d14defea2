{{- define "preflight-gpu-scheduler.notes" -}}
The GPU scheduler is installed in namespace {{ .Release.Namespace }}. Its locks are the Leases of namespace {{ include "preflight-gpu-scheduler.lockNamespace" . }}.

Taint the nodes that it alone fills, and see what it knows of them:

  kubectl taint nodes NODE gpu.scheduling/managed=true:NoSchedule
  kubectl get gpunodestatuses
{{- include "preflight.keptNotes" (dict "root" . "namespaces" (list (include "preflight-gpu-scheduler.lockNamespace" .))) }}
{{- end -}}
