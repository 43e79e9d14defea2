{{- define "preflight-mnnvl.controllerRules" -}}
{{- $literal := include "preflight-mnnvl.literal" . }}
{{- $enforced := (.Values.rbac).ownerReferencesPermissionEnforcement }}
{{- /* Which PodCliques live and what was decided about them; who their set is, the first owner of a domain. */}}
- apiGroups: [grove.io]
  resources: [podcliques, podcliquesets]
  verbs: [list, watch]
{{- /* The owners of domains; patched to say that all their domains are their own, which policies.yaml narrows down to that annotation. */}}
- apiGroups: [scheduler.grove.io]
  resources: [podgangs]
  verbs: [list, watch, patch]
{{- /* The domains. There is no right to delete: what nobody needs is left to the garbage collector. policies.yaml narrows it down to ours. */}}
- apiGroups: [resource.nvidia.com]
  resources: [computedomains]
  verbs: [list, watch, create, patch{{ if $enforced }}, delete{{ end }}]
{{- /* Whether the driver has made a domain's template. */}}
- apiGroups: [resource.k8s.io]
  resources: [resourceclaimtemplates]
  verbs: [list, watch]
{{- if $literal }}
- apiGroups: [resource.k8s.io]
  resources: [resourceclaims]
  verbs: [list, watch, create, patch{{ if $enforced }}, delete{{ end }}]
{{- end }}
{{- if $enforced }}
- apiGroups: [scheduler.grove.io]
  resources: [podgangs/finalizers]
  verbs: [update]
{{- end }}
{{- /* How many carry the fabric's label. */}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch]
{{- /* One Event for each fact. */}}
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}

{{- define "preflight-mnnvl.webhookRules" -}}
{{- $literal := include "preflight-mnnvl.literal" . }}
{{- /* What the user wrote on the set; one that is not mirrored yet is read by itself. */}}
- apiGroups: [grove.io]
  resources: [podcliquesets]
  verbs: [get, list, watch]
{{- /* Which classes a PodClique's own claims ask for. */}}
- apiGroups: [resource.k8s.io]
  resources: [resourceclaims, resourceclaimtemplates]
  verbs: [get]
{{- if not $literal }}
{{- /* What has the name of a domain or of its template already. */}}
- apiGroups: [resource.nvidia.com]
  resources: [computedomains]
  verbs: [list, watch]
- apiGroups: [resource.k8s.io]
  resources: [resourceclaimtemplates]
  verbs: [list, watch]
- apiGroups: [resource.k8s.io]
  resources: [deviceclasses]
  verbs: [list, watch]
{{- end }}
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch]
{{- if $literal }}
{{- /* In this mode both objects exist before the PodClique is admitted. */}}
- apiGroups: [resource.nvidia.com]
  resources: [computedomains]
  verbs: [get, create]
- apiGroups: [resource.k8s.io]
  resources: [resourceclaims]
  verbs: [create]
{{- end }}
{{- end }}
