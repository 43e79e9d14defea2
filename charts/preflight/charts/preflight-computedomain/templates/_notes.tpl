{{- define "preflight-computedomain.notes" -}}
{{- if not (include "preflight-computedomain.on" .) -}}
preflight-computedomain: resources.computeDomains.enabled is false, so nothing but the definition of ComputeDomain is installed.
{{- else -}}
ComputeDomains with host-managed IMEX are installed in namespace {{ .Release.Namespace }}. nvidia-imex is yours: nothing here starts, asks or judges it, and
Ready says that a ComputeDomain's template exists, no more. Run one ComputeDomain at a time for each IMEX domain: all use channel 0.

  kubectl -n {{ .Release.Namespace }} rollout status deployment/{{ include "preflight.name" . | printf "%s-controller" }}
  kubectl -n {{ .Release.Namespace }} rollout status daemonset/{{ include "preflight.name" . | printf "%s-kubelet-plugin" }}
  kubectl get resourceslices --field-selector spec.driver=compute-domain.nvidia.com   # one for each node
  kubectl -n {{ .Release.Namespace }} exec deployment/{{ include "preflight.name" . | printf "%s-controller" }} -- preflight-computedomain --help
{{- end }}
{{- if dig "resources" "gpus" "enabled" false .Values.AsMap }}

resources.gpus.enabled changes nothing here: GPUs are the part of NVIDIA's own chart, beside this one with its resources.computeDomains.enabled=false.
{{- end }}
{{- include "preflight.keptNotes" (dict "root" .) }}
{{- end }}
