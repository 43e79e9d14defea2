{{- define "preflight-appwrapper.notes" -}}
AppWrappers are looked after from namespace {{ .Release.Namespace }}. See that it works: one replica holds the lease.

  kubectl -n {{ .Release.Namespace }} rollout status deployment/{{ include "preflight.name" . }}-controller
  kubectl -n {{ .Release.Namespace }} get lease preflight-appwrapper -o jsonpath='{.spec.holderIdentity}{"\n"}'
  kubectl get appwrappers -A

With Kueue: waitForPodsReady.timeout has to be longer than the worst-case start delay that `preflight-webhook explain` shows, and
waitForPodsReady.recoveryTimeout longer than a reset.
{{- include "preflight.keptNotes" (dict "root" .) }}
{{- end }}
