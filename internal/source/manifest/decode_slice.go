package manifest

import (
	discoveryv1 "k8s.io/api/discovery/v1"
)

// endpointSlice fills d.slice, which is valid until the next call.
func (d *decoder) endpointSlice() error {
	o := &d.slice
	*o = discoveryv1.EndpointSlice{Ports: o.Ports[:0], Endpoints: o.Endpoints[:0]}
	d.addresses, d.zones, d.nodes, d.hints = d.addresses[:0], d.zones[:0], d.nodes[:0], d.hints[:0]
	return d.object(func(key []byte) error {
		switch string(key) {
		case "metadata":
			return d.meta(&o.ObjectMeta)
		case "addressType":
			return d.name((*string)(&o.AddressType))
		case "ports":
			o.Ports = o.Ports[:0]
			return d.list(func(int) error { return d.endpointPort(grow(&o.Ports)) })
		case "endpoints":
			o.Endpoints = o.Endpoints[:0]
			return d.list(func(int) error { return d.endpoint(grow(&o.Endpoints)) })
		}
		return d.skip()
	})
}

func (d *decoder) endpointPort(p *discoveryv1.EndpointPort) error {
	return d.object(func(key []byte) error {
		switch string(key) {
		case "name":
			return d.namePointer(&p.Name)
		case "protocol":
			return enumPointer(d, &p.Protocol)
		case "port":
			return d.int32Pointer(&p.Port)
		}
		return d.skip()
	})
}

func (d *decoder) endpoint(e *discoveryv1.Endpoint) error {
	return d.object(func(key []byte) error {
		switch string(key) {
		case "addresses":
			start := len(d.addresses)
			err := d.list(func(int) error { return d.str(grow(&d.addresses)) })
			e.Addresses = d.addresses[start:len(d.addresses):len(d.addresses)]
			return err
		case "conditions":
			return d.conditions(&e.Conditions)
		case "nodeName":
			return d.namePointer(&e.NodeName)
		case "zone":
			return d.namePointer(&e.Zone)
		case "hints":
			e.Hints = grow(&d.hints)
			return d.endpointHints(e.Hints)
		}
		return d.skip()
	})
}

func (d *decoder) conditions(c *discoveryv1.EndpointConditions) error {
	return d.object(func(key []byte) error {
		switch string(key) {
		case "ready":
			return d.boolPointer(&c.Ready)
		case "serving":
			return d.boolPointer(&c.Serving)
		case "terminating":
			return d.boolPointer(&c.Terminating)
		}
		return d.skip()
	})
}

func (d *decoder) endpointHints(h *discoveryv1.EndpointHints) error {
	return d.object(func(key []byte) error {
		switch string(key) {
		case "forZones":
			start := len(d.zones)
			err := d.list(func(int) error { return d.hintName(&grow(&d.zones).Name) })
			h.ForZones = d.zones[start:len(d.zones):len(d.zones)]
			return err
		case "forNodes":
			start := len(d.nodes)
			err := d.list(func(int) error { return d.hintName(&grow(&d.nodes).Name) })
			h.ForNodes = d.nodes[start:len(d.nodes):len(d.nodes)]
			return err
		}
		return d.skip()
	})
}

func (d *decoder) hintName(to *string) error {
	return d.object(func(key []byte) error {
		if string(key) == "name" {
			return d.name(to)
		}
		return d.skip()
	})
}
