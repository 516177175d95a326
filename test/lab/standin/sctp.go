package standin

import (
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// SCTPAnnotation names the containers of a pod that serve TCP in place of SCTP, which the kernel
// does not have: "web,cache".
const SCTPAnnotation = "lab.sluice.dev/no-sctp"

// HasSCTP reports whether the kernel has sockets of SCTP.
func HasSCTP() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return false
	}
	_ = unix.Close(fd) // nothing was written
	return true
}

// The variables by which the porter of Kubernetes' agnhost is told what to serve on a port.
const porterSCTP, porterTCP = "SERVE_SCTP_PORT_", "SERVE_PORT_"

// withoutSCTP has porters serve TCP in place of SCTP, without which they end, and a pod of which
// they are a part never gets ready. It returns what it has noted of the pod.
func withoutSCTP(pod *corev1.Pod) (all []string) {
	for i := range pod.Spec.Containers {
		c, changed := &pod.Spec.Containers[i], false
		for j := range c.Env {
			if port, ok := strings.CutPrefix(c.Env[j].Name, porterSCTP); ok {
				c.Env[j].Name, changed = porterTCP+port, true
			}
		}
		if changed {
			all = append(all, c.Name)
		}
	}
	if len(all) > 0 {
		annotate(pod, SCTPAnnotation, strings.Join(all, ","))
	}
	return all
}

func annotate(pod *corev1.Pod, name, value string) {
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[name] = value
}

// sayWithoutSCTP says to people what withoutSCTP has noted.
func sayWithoutSCTP(noted string) string {
	return "containers " + strings.ReplaceAll(noted, ",", ", ") + ": this machine's kernel has no SCTP, so they serve TCP in its place"
}
