package cluster

// StickyPort is the target port of the service with session affinity.
const StickyPort = TargetPort + 1

// StickyFiles are the manifests of one more service, number c.Services, with session affinity.
func (c Cluster) StickyFiles() []File {
	i := c.Services
	service, slice := c.service(i), c.slice(i, c.Endpoints)
	spec := service["spec"].(object)
	spec["sessionAffinity"] = "ClientIP"
	for _, port := range spec["ports"].([]object) {
		port["targetPort"] = StickyPort
	}
	for _, port := range slice["ports"].([]object) {
		port["port"] = StickyPort
	}
	return []File{file("sticky-service.json", service), file("sticky-slice.json", slice)}
}
