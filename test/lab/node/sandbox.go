package node

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Sandbox is what a node's runtime holds of a pod.
type Sandbox struct {
	Namespace, Name, UID string
	NetNS                string // the file of its network namespace, for processes outside of the node
}

// Sandboxes lists the pods of a node that have a network namespace of their own, as containerd
// keeps them; none if the node is off.
func Sandboxes(dir string) ([]Sandbox, error) {
	files, err := filepath.Glob(Path(dir, "/run/containerd/io.containerd.runtime.v2.task/k8s.io/*/config.json"))
	if err != nil {
		return nil, err
	}
	var all []Sandbox
	for _, file := range files {
		data, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has just ended
		}
		if err != nil {
			return nil, err
		}
		var spec struct {
			Annotations map[string]string
			Linux       struct {
				Namespaces []struct{ Type, Path string }
			}
		}
		if json.Unmarshal(data, &spec) != nil || spec.Annotations["io.kubernetes.cri.container-type"] != "sandbox" {
			continue // it is being written, or a container's
		}
		for _, ns := range spec.Linux.Namespaces {
			if ns.Type == "network" && ns.Path != "" {
				a := spec.Annotations
				all = append(all, Sandbox{a["io.kubernetes.cri.sandbox-namespace"], a["io.kubernetes.cri.sandbox-name"], a["io.kubernetes.cri.sandbox-uid"], Path(dir, filepath.Join("/run/netns", filepath.Base(ns.Path)))})
			}
		}
	}
	return all, nil
}
