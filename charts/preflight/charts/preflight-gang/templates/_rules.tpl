{{- define "preflight-gang.rules" -}}
{{- /* Members of gangs and their checks' results; patched with a pod's answer. RBAC knows no smaller right than
`patch`, which alone could change any image: policies.yaml takes away all but our own annotations. */}}
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch]
{{- /* A gang's record, in the pods' own namespace; policies.yaml narrows this down to records of ours. One that somebody
has made immutable is deleted and made anew. Records belong to their gang's workload and go with it: on some clusters
(OwnerReferencesPermissionEnforcement) only who may delete an object may say who owns it. */}}
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, update, delete]
{{- /* Instance type and topology labels, which a container cannot read, are copied to its pod; conditions say which nodes are sick. */}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch]
{{- /* Which are opted in: only their checks' results are counted, and their GPU pods without checks. */}}
- apiGroups: [""]
  resources: [namespaces]
  verbs: [list, watch]
{{- if include "preflight-gang.auditsClaims" . }}
{{- /* GPU pods without checks may have their GPUs by dynamic resource allocation: which extended resources stand for device
classes, and what the claims of such pods ask for. Read only, page by page; nothing of it is kept. */}}
- apiGroups: [resource.k8s.io]
  resources: [deviceclasses, resourceclaims, resourceclaimtemplates]
  verbs: [list]
{{- end }}
{{- /* PreflightConfigs of namespaces are judged, and the verdict is written as their status; what they say is not ours to change. */}}
- apiGroups: [preflight.nvsentinel.nvidia.com]
  resources: [preflightconfigs]
  verbs: [list, watch]
- apiGroups: [preflight.nvsentinel.nvidia.com]
  resources: [preflightconfigs/status]
  verbs: [update]
{{- /* What conditions and results say of each node is written down, by this controller alone; records go with their nodes. */}}
- apiGroups: [preflight.nvsentinel.nvidia.com]
  resources: [nodehealths]
  verbs: [list, watch, create]
- apiGroups: [preflight.nvsentinel.nvidia.com]
  resources: [nodehealths/status]
  verbs: [update]
{{- /* One Event on a pod for each result, and on a node whose health has changed. */}}
- apiGroups: [""]
  resources: [events]
  verbs: [create]

{{- /* The size of a gang is in the object that its scheduler or its workload controller keeps. Read only; one that
is not installed is not missed. */}}

{{- /* Kubernetes' own gangs: Workload of spec.workloadRef (1.35), PodGroup of spec.schedulingGroup (1.36). */}}
- apiGroups: [scheduling.k8s.io]
  resources: [workloads, podgroups]
  verbs: [list, watch]
{{- /* Volcano: minMember of the PodGroup. */}}
- apiGroups: [scheduling.volcano.sh]
  resources: [podgroups]
  verbs: [list, watch]
{{- /* Coscheduling of the scheduler plug-ins: minMember of the PodGroup. */}}
- apiGroups: [scheduling.x-k8s.io]
  resources: [podgroups]
  verbs: [list, watch]
{{- /* KAI: minMember of the PodGroup. */}}
- apiGroups: [scheduling.run.ai]
  resources: [podgroups]
  verbs: [list, watch]
{{- /* Kueue: counts of the Workload's pod sets. */}}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [list, watch]
{{- /* Grove: pod groups of the PodGang. */}}
- apiGroups: [scheduler.grove.io]
  resources: [podgangs]
  verbs: [list, watch]
{{- /* JobSet: replicas, and whether its jobs start in order (members that do can never meet). */}}
- apiGroups: [jobset.x-k8s.io]
  resources: [jobsets]
  verbs: [list, watch]
{{- /* LeaderWorkerSet: size, and whether workers wait for a ready leader. */}}
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets]
  verbs: [list, watch]
{{- /* Indexed Jobs: parallelism. */}}
- apiGroups: [batch]
  resources: [jobs]
  verbs: [list, watch]
{{- /* Kubeflow Trainer: nodes of a TrainJob. */}}
- apiGroups: [trainer.kubeflow.org]
  resources: [trainjobs]
  verbs: [list, watch]
{{- /* Kubeflow Training Operator: replicas by role. */}}
- apiGroups: [kubeflow.org]
  resources: [pytorchjobs, mpijobs, tfjobs, xgboostjobs, paddlejobs, jaxjobs]
  verbs: [list, watch]
{{- range include "preflight-gang.sources" . | fromJsonArray }}
{{- /* Those of a source of the configuration. */}}
- apiGroups: [{{ .group }}]
  resources: [{{ .resource }}]
  verbs: [list, watch]
{{- end }}
{{- end }}
