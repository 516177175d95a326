package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/internal/source/kinds"
	"sluice.dev/sluice/test/lab/build"
)

// published are the Go modules that the definitions of kinds are published in.
var published = []struct{ path, version, sum, files string }{
	{"sigs.k8s.io/network-policy-api", "v0.3.0", "h1:RL6fVXiix9IW1pj0ImkW645m+EWmb3dBGCiW19bg5+k=", "config/crd/experimental/policy.*.yaml"},
	{"github.com/projectcalico/calico", "v1.11.0-cni-plugin.0.20250813170300-a0db560f0520", "h1:TXnPEzx4pLWgwzCetIO/VJuz4iBZZrOdNSv16a50YqE=", "libcalico-go/config/crd/*.yaml"},
	{"go.universe.tf/metallb", "v0.16.2", "h1:RCSAGoZmqcvTg0e56+Okbwz8iTuQVX30JpKX5mYEPUM=", "config/crd/bases/*.yaml"},
}

// object is a CustomResourceDefinition, or a part of one. It is no Go type, so that nothing of it
// is lost.
type object = map[string]any

// WriteCRDs writes the CustomResourceDefinitions of the kinds that Sluice reads into a folder:
// ClusterNetworkPolicy's, MetalLB's, and Calico's of version 3.28 as projectcalico.org/v3, the
// version that people write. Calico has tiers since 3.30: these are added. The modules that have
// the rest are downloaded by the Go toolchain, once, and verified.
func WriteCRDs(ctx context.Context, dir string) error {
	folders, err := Published(ctx)
	if err != nil {
		return err
	}
	all := []object{tierCRD()}
	for _, m := range published {
		files, _ := filepath.Glob(filepath.Join(folders[m.path], m.files)) // the pattern is well-formed
		for _, f := range files {
			crd, err := readCRD(f)
			if err != nil {
				return fmt.Errorf("read %s: %w", f, err)
			}
			all = append(all, crd)
		}
	}
	for _, crd := range all {
		if !isRead(crd) {
			continue
		}
		data, err := yaml.Marshal(crd)
		if err != nil {
			return fmt.Errorf("write the definitions of kinds: %w", err)
		}
		if err := os.WriteFile(filepath.Join(dir, under(crd, "metadata")["name"].(string)+".yaml"), data, 0o644); err != nil {
			return fmt.Errorf("write the definitions of kinds: %w", err)
		}
	}
	return nil
}

// Published returns the folders of the modules that the definitions are published in, by the
// modules' paths.
func Published(ctx context.Context) (map[string]string, error) {
	folders := map[string]string{}
	for _, m := range published {
		out, err := build.Go(ctx, os.TempDir(), "mod", "download", "-json", m.path+"@"+m.version)
		if err != nil {
			return nil, fmt.Errorf("download the definitions of kinds: %w", err)
		}
		var got struct{ Dir, Sum string }
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			return nil, fmt.Errorf("read the answer of go mod download: %w", err)
		}
		if got.Sum != m.sum {
			return nil, fmt.Errorf("download %s %s: its sum is %s, and should be %s", m.path, m.version, got.Sum, m.sum)
		}
		folders[m.path] = got.Dir
	}
	return folders, nil
}

// under returns the object at the end of a path of fields; the last one of a list. nil: there is
// none.
func under(o object, path ...string) object {
	for _, name := range path {
		next := o[name]
		if list, ok := next.([]any); ok && len(list) > 0 {
			next = list[len(list)-1]
		}
		o, _ = next.(object)
	}
	return o
}

// isRead reports whether Sluice reads objects of the definition.
func isRead(crd object) bool {
	spec := under(crd, "spec")
	return slices.ContainsFunc(kinds.All, func(k kinds.Kind) bool {
		return k.Places[0].Group == spec["group"] && k.Name == under(spec, "names")["kind"]
	})
}

// readCRD reads a definition. One of Calico's becomes that of projectcalico.org/v3.
func readCRD(file string) (crd object, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if err := yaml.Unmarshal(data, &crd); err != nil {
		return nil, err
	}
	spec := under(crd, "spec")
	schema := under(spec, "versions", "schema", "openAPIV3Schema", "properties")
	if schema == nil {
		return nil, errors.New("it is no CustomResourceDefinition with a schema")
	}
	delete(crd, "status")
	if spec["group"] != kinds.CalicoStored {
		return crd, nil
	}
	names, version := under(spec, "names"), under(spec, "versions")
	spec["group"], version["name"] = kinds.CalicoGroup, "v3"
	crd["metadata"] = object{"name": fmt.Sprint(names["plural"], ".", kinds.CalicoGroup)}
	if kind := names["kind"]; kind == "NetworkPolicy" || kind == "GlobalNetworkPolicy" {
		under(schema, "spec", "properties")["tier"] = object{"type": "string"}
	}
	return crd, nil
}

// tierCRD is the definition of a Tier.
func tierCRD() object {
	schema := object{"type": "object", "properties": object{
		"apiVersion": object{"type": "string"}, "kind": object{"type": "string"}, "metadata": object{"type": "object"},
		"spec": object{"type": "object", "properties": object{
			"order": object{"type": "number"}, "defaultAction": object{"type": "string", "enum": []any{"Pass", "Deny"}},
		}},
	}}
	return object{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": object{"name": "tiers." + kinds.CalicoGroup},
		"spec": object{
			"group": kinds.CalicoGroup, "scope": "Cluster",
			"names":    object{"kind": "Tier", "listKind": "TierList", "plural": "tiers", "singular": "tier"},
			"versions": []any{object{"name": "v3", "served": true, "storage": true, "schema": object{"openAPIV3Schema": schema}}},
		},
	}
}
