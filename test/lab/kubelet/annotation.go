package kubelet

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/test/lab/echo"
)

// These annotations control a pod, also while it runs.
const (
	// ReadyAnnotation "false" makes the pod not ready at once, whatever its probes say. With
	// "true", or without it, the probes decide again.
	ReadyAnnotation = "lab.sluice.dev/ready"
	// DrainAnnotation is how long the pod's servers go on after the stop signal, as a Go duration;
	// the default is 2s, and the limit is the grace period.
	DrainAnnotation = "lab.sluice.dev/drain"
	// PortsAnnotation lists ports that the first container serves besides its declared ones:
	// "8080,53/UDP".
	PortsAnnotation = "lab.sluice.dev/ports"
)

// heldUnready reports whether an annotation keeps the pod unready.
func heldUnready(pod *corev1.Pod) bool { return pod.Annotations[ReadyAnnotation] == "false" }

// defaultDrain is how long a well-behaved server takes to finish.
const defaultDrain = 2 * time.Second

func drain(pod *corev1.Pod) time.Duration {
	if d, err := time.ParseDuration(pod.Annotations[DrainAnnotation]); err == nil && d >= 0 {
		return d
	}
	return defaultDrain
}

// extraPorts reads PortsAnnotation. The error says what is wrong; the valid ports count.
func extraPorts(pod *corev1.Pod) (ports []echo.Port, err error) {
	for word := range strings.SplitSeq(pod.Annotations[PortsAnnotation], ",") {
		word = strings.TrimSpace(word)
		if word == "" {
			continue
		}
		number, protocol, _ := strings.Cut(word, "/")
		n, parseErr := strconv.ParseUint(number, 10, 16)
		switch protocol = strings.ToUpper(protocol); protocol {
		case "":
			protocol = "TCP"
		case "TCP", "UDP":
		default:
			parseErr = fmt.Errorf("unknown protocol")
		}
		if parseErr != nil || n == 0 {
			err = fmt.Errorf("annotation %s: %q is not a port such as 8080 or 53/UDP", PortsAnnotation, word)
			continue
		}
		ports = append(ports, echo.Port{Protocol: protocol, Port: uint16(n)})
	}
	return ports, err
}
