{{/*
Days that may pass between two runs of certificates.schedule, at the most: an upper bound, from the coarsest field that is restricted.
*/}}
{{- define "preflight-mnnvl.daysBetweenRuns" -}}
{{- $names := dict "@yearly" 366.0 "@annually" 366.0 "@monthly" 31.0 "@weekly" 7.0 "@daily" 1.0 "@midnight" 1.0 "@hourly" 0.05 -}}
{{- $schedule := include "preflight-mnnvl.schedule" . | trim -}}
{{- if hasKey $names $schedule -}}
{{- get $names $schedule -}}
{{- else -}}
{{- $fields := regexSplit `\s+` $schedule -1 -}}
{{- if ne (len $fields) 5 -}}
{{- fail (printf "certificates.schedule is %q; write five fields (minute, hour, day of the month, month, day of the week) or @daily." $schedule) -}}
{{- end -}}
{{- $hour := index $fields 1 -}}{{- $day := index $fields 2 -}}{{- $month := index $fields 3 -}}{{- $weekday := index $fields 4 -}}
{{- if not (has $month (list "*" "?")) -}}366
{{- else if not (has $weekday (list "*" "?")) -}}7
{{- else if regexMatch `^\*/\d+$` $day -}}{{- trimPrefix "*/" $day -}}
{{- else if not (has $day (list "*" "?")) -}}31
{{- else if eq $hour "*" -}}0.05
{{- else if regexMatch `^\*/\d+$` $hour -}}{{- divf (trimPrefix "*/" $hour | float64) 24 -}}
{{- else -}}1
{{- end -}}
{{- end -}}
{{- end }}
