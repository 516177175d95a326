package cluster

import "sluice.dev/sluice/internal/model"

// Member is an endpoint in a slice.
type Member struct {
	Index       int  // of the service's endpoints
	Terminating bool // it serves, but gets no new connections if others are ready
}

// MembersFile is the manifest of service i's EndpointSlice with these endpoints.
func (c Cluster) MembersFile(i int, members ...Member) File {
	return file(ServiceName(i).Name+".json", c.members(i, members))
}

func (c Cluster) members(i int, members []Member) object {
	endpoints := make([]object, len(members))
	for j, m := range members {
		conditions := object{"ready": true}
		if m.Terminating {
			conditions = object{"ready": false, "serving": true, "terminating": true}
		}
		endpoints[j] = object{"addresses": []string{c.Endpoint(i, m.Index).Addr().String()}, "conditions": conditions}
	}
	return object{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
		"metadata":    meta(ServiceName(i), object{"kubernetes.io/service-name": ServiceName(i).Name}),
		"addressType": "IPv4", "endpoints": endpoints,
		"ports": []object{{"name": portName, "protocol": "TCP", "port": TargetPort}},
	}
}

// first are a slice's first n endpoints, all ready.
func first(n int) []Member {
	members := make([]Member, n)
	for j := range members {
		members[j].Index = j
	}
	return members
}

// NamespaceFile is the manifest of the namespace that everything is in.
func NamespaceFile() File {
	return file("namespace.json", object{
		"apiVersion": "v1", "kind": "Namespace",
		"metadata": object{"name": namespace, "labels": object{model.MetadataNameLabel: namespace}},
	})
}
