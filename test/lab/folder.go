package lab

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sluice.dev/sluice/test/lab/plan"
)

// writeObjects brings the agents' folder in line with the plan: one object a file, written only if
// it changed.
func (l *Lab) writeObjects() error {
	files := map[string]any{}
	add := func(kind, namespace, name string, obj any) {
		parts := []string{kind, namespace, name}
		if namespace == "" {
			parts = []string{kind, name}
		}
		files[strings.Join(parts, ".")+".json"] = obj
	}
	c := l.Cluster
	for i := range c.Nodes {
		add("node", "", c.Nodes[i].Name, c.Nodes[i].Object(c.Created))
	}
	for _, ns := range c.Namespaces {
		add("namespace", "", ns.Name, ns)
	}
	for _, a := range c.Accounts {
		add("serviceaccount", a.Namespace, a.Name, a)
	}
	for _, p := range c.Pods {
		add("pod", p.Namespace, p.Name, p)
	}
	for _, s := range c.Services {
		add("service", s.Namespace, s.Name, s)
	}
	for _, s := range append(c.Slices[:len(c.Slices):len(c.Slices)], c.Given...) {
		add("endpointslice", s.Namespace, s.Name, s)
	}
	for _, p := range slices.Concat(c.Policies, c.Fabric.Objects()) {
		add(p.Resource(), p.Namespace, p.Name, p.Object)
	}
	return l.writeFolder(l.manifests(), files)
}

// writeFolder makes a folder hold exactly these files.
func (l *Lab) writeFolder(dir string, files map[string]any) error {
	for name, v := range files {
		data, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
		data = append(data, '\n')
		path := filepath.Join(dir, name)
		if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
			continue
		}
		if err := l.write(path, data); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read folder: %w", err)
	}
	for _, e := range entries {
		if _, ok := files[e.Name()]; ok {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove object: %w", err)
		}
	}
	return nil
}

// writeHosts writes the names of the lab: one hosts file for each Kubernetes namespace, and a
// resolver configuration without other servers.
func (l *Lab) writeHosts() error {
	for _, ns := range l.Cluster.Namespaces {
		if err := l.write(l.hosts(ns.Name), []byte(l.Cluster.Hosts(ns.Name))); err != nil {
			return err
		}
	}
	resolver := "# Names come from /etc/hosts: a lab has no DNS server and reaches none.\n" +
		"nameserver 127.0.0.1\noptions timeout:1 attempts:1\nsearch svc." + plan.Domain + "\n"
	return l.write(l.resolver(), []byte(resolver))
}

func (l *Lab) hosts(namespace string) string { return l.path("hosts", namespace) }
func (l *Lab) resolver() string              { return l.path("resolv.conf") }

// write replaces a file as a whole: a watcher of the folder never sees half of it, nor the
// temporary file, which is outside the folder.
func (l *Lab) write(path string, data []byte) error {
	f, err := os.CreateTemp(l.path(), ".new-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(f.Name()))
	}
	return nil
}
