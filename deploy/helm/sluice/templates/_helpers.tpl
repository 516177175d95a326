{{- define "sluice.name" }}{{ .Values.nameOverride | default "sluice" }}{{ end }}
{{- define "sluice.fullname" }}{{ .Values.fullnameOverride | default (include "sluice.name" .) }}{{ end }}
{{- define "sluice.tag" }}
{{- if kindIs "float64" .Values.image.tag }}{{ int64 .Values.image.tag }}{{ else }}{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}
{{- define "sluice.image" }}
          image: {{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ include "sluice.tag" . }}{{ end }}
          imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}
{{- define "sluice.env" }}
            - name: NODE_NAME
              valueFrom:
                fieldRef:
                  fieldPath: spec.nodeName
            {{- with .Values.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
{{- end }}
{{- define "sluice.rights" }}
          securityContext:
            {{- if .Values.privileged }}
            privileged: true
            {{- else }}
            allowPrivilegeEscalation: false
            capabilities:
              drop: [ALL]
              add: [NET_ADMIN{{ if .Values.accelerate }}, BPF, PERFMON{{ end }}{{ if has "sockets" .Values.accelerate }}, SYS_ADMIN, SYS_PTRACE{{ end }}{{ if or .Values.addresses.enabled (has .Values.mode (list "iptables" "auto")) }}, NET_RAW{{ end }}{{ if or .Values.fabric.bgp.enabled (has .Values.mode (list "userspace" "auto")) }}, NET_BIND_SERVICE{{ end }}]
            seccompProfile:
              type: RuntimeDefault
            {{- end }}
            {{- if and .Values.accelerate (semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version) }}
            # The default profile lets nobody write to the BPF file system.
            appArmorProfile:
              type: Unconfined
            {{- end }}
            readOnlyRootFilesystem: true
            runAsUser: 0
            {{- with .Values.seLinuxOptions }}
            seLinuxOptions:
              {{- toYaml . | nindent 14 }}
            {{- end }}
          {{- with .Values.resources }}
          resources:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          volumeMounts:
            - name: run
              mountPath: /run/sluice
            - name: bpf
              mountPath: /sys/fs/bpf
              mountPropagation: HostToContainer
            {{- if has .Values.mode (list "iptables" "auto") }}
            - name: xtables-lock
              mountPath: /run/xtables.lock
            {{- end }}
            {{- if .Values.cni.enabled }}
            - name: cni-bin
              mountPath: {{ .Values.cni.binDir }}
            - name: cni-conf
              mountPath: {{ .Values.cni.confDir }}
            {{- end }}
            {{- if has "sockets" .Values.accelerate }}
            - name: cgroup
              mountPath: /sys/fs/cgroup
              readOnly: true
            - name: netns
              mountPath: /run/netns
              mountPropagation: HostToContainer
              readOnly: true
            {{- end }}
            {{- with .Values.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
{{- end }}
