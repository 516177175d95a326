// Package cluster generates clusters of any size: service i has one ClusterIP, one port and so many
// endpoints in one EndpointSlice, all computed from i, so that a cluster of a million endpoints is
// a value of three numbers.
package cluster

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/netip"
	"time"

	"sluice.dev/sluice/internal/model"
)

// The address plan. Services and Endpoints hold four and eight million addresses.
var (
	Services  = netip.MustParsePrefix("10.64.0.0/10")
	Endpoints = netip.MustParsePrefix("10.128.0.0/9")
)

// Node is the name of the cluster's one node, and NodeAddr its address.
const Node = "node"

// NodeAddr is where NodePorts are reached.
var NodeAddr = netip.MustParseAddr("172.16.0.1")

// The ports of every service, and the name that joins a service's port with its slice's.
const (
	ServicePort = 80
	TargetPort  = 8080
	portName    = "http"
	namespace   = "bench"
)

// Cluster is a size. Its services are numbered from 0.
type Cluster struct {
	Services  int
	Endpoints int            // of each service
	NodePort  uint16         // of the last service; 0: none
	Protocol  model.Protocol // of all services; 0: TCP
}

// String returns "10,000 services × 10 endpoints" with plain digits.
func (c Cluster) String() string {
	return fmt.Sprintf("%d services x %d endpoints", c.Services, c.Endpoints)
}

// Transport is the protocol of all services.
func (c Cluster) Transport() model.Protocol { return cmp.Or(c.Protocol, model.TCP) }

// ServiceName is the name of service i; its slice has the same.
func ServiceName(i int) model.Name {
	return model.Name{Namespace: namespace, Name: fmt.Sprintf("svc-%06d", i)}
}

// ServiceAddr is the ClusterIP of service i.
func ServiceAddr(i int) netip.Addr { return nth(Services, i+1) }

// Endpoint is the address of endpoint j of service i.
func (c Cluster) Endpoint(i, j int) netip.AddrPort {
	return netip.AddrPortFrom(nth(Endpoints, i*c.Endpoints+j+1), TargetPort)
}

// nodePort of service i.
func (c Cluster) nodePort(i int) uint16 {
	if i == c.Services-1 {
		return c.NodePort
	}
	return 0
}

// Service is service i as a model object.
func (c Cluster) Service(i int) *model.Service {
	return &model.Service{
		Name:       ServiceName(i),
		Created:    created,
		ClusterIPs: []netip.Addr{ServiceAddr(i)},
		Ports: []model.ServicePort{{
			Name: portName, Protocol: c.Transport(), Port: ServicePort, NodePort: c.nodePort(i), TargetPort: TargetPort,
		}},
	}
}

// Slice is the EndpointSlice of service i with its first n endpoints.
func (c Cluster) Slice(i, n int) *model.EndpointSlice {
	s := &model.EndpointSlice{
		Name:    ServiceName(i),
		Service: ServiceName(i).Name,
		Ports:   []model.EndpointPort{{Name: portName, Protocol: c.Transport(), Port: TargetPort}},
	}
	for j := range n {
		s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: c.Endpoint(i, j).Addr(), Ready: true, Serving: true})
	}
	return s
}

var created = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

// File is one object's manifest.
type File struct {
	Name string
	JSON []byte
}

// Kind is the object's kind.
func (f File) Kind() string {
	var o struct{ Kind string }
	_ = json.Unmarshal(f.JSON, &o) // it was made of JSON
	return o.Kind
}

// NodeFile is the manifest of the cluster's node.
func NodeFile() File {
	return file("node.json", object{
		"apiVersion": "v1", "kind": "Node", "metadata": object{"name": Node},
		"status": object{"addresses": []object{{"type": "InternalIP", "address": NodeAddr.String()}}},
	})
}

// Files yields every object of the cluster as a manifest of its own.
func (c Cluster) Files() iter.Seq[File] {
	return func(yield func(File) bool) {
		if !yield(NodeFile()) {
			return
		}
		for i := range c.Services {
			if !yield(c.ServiceFile(i)) || !yield(c.SliceFile(i, c.Endpoints)) {
				return
			}
		}
	}
}

type object = map[string]any

func meta(n model.Name, labels object) object {
	return object{"name": n.Name, "namespace": n.Namespace, "creationTimestamp": created, "labels": labels}
}

// ServiceFile is the manifest of service i.
func (c Cluster) ServiceFile(i int) File {
	return file(fmt.Sprintf("service-%06d.json", i), c.service(i))
}

// SliceFile is the manifest of service i's EndpointSlice with its first n endpoints.
func (c Cluster) SliceFile(i, n int) File {
	return file(fmt.Sprintf("slice-%06d.json", i), c.slice(i, n))
}

// WriteList writes the objects of services [from, to) as one v1 List, one item a line.
func (c Cluster) WriteList(w io.Writer, from, to int) error {
	if _, err := io.WriteString(w, `{"apiVersion":"v1","kind":"List","items":[`+"\n"); err != nil {
		return err
	}
	enc := json.NewEncoder(w)
	for i := from; i < to; i++ {
		for _, o := range []object{c.service(i), c.slice(i, c.Endpoints)} {
			if i > from || o["kind"] != "Service" {
				if _, err := io.WriteString(w, ","); err != nil {
					return err
				}
			}
			if err := enc.Encode(o); err != nil {
				return err
			}
		}
	}
	_, err := io.WriteString(w, "]}\n")
	return err
}

func (c Cluster) service(i int) object {
	port := object{"name": portName, "protocol": c.Transport().String(), "port": ServicePort, "targetPort": TargetPort}
	kind := "ClusterIP"
	if n := c.nodePort(i); n != 0 {
		port["nodePort"], kind = n, "NodePort"
	}
	addr := ServiceAddr(i).String()
	return object{
		"apiVersion": "v1", "kind": "Service", "metadata": meta(ServiceName(i), nil),
		"spec": object{"type": kind, "clusterIP": addr, "clusterIPs": []string{addr}, "ports": []object{port}},
	}
}

func (c Cluster) slice(i, n int) object { return c.members(i, first(n)) }

// file marshals an object, which cannot fail for those that are made here.
func file(name string, o any) File {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return File{Name: name, JSON: b}
}

// nth returns the prefix's address number n.
func nth(p netip.Prefix, n int) netip.Addr {
	b := p.Addr().As4()
	v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	v += uint32(n)
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}
