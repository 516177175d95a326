package takeover

// StopDaemonSet is what a user is told to do where a DaemonSet runs kube-proxy.
func StopDaemonSet(node string) string { return process{pod: true}.stop("kube-proxy", node) }
