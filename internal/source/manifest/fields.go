package manifest

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice.dev/sluice/internal/source/kubeobj"
)

// The kinds that there are many objects of, with the fields that kubeobj looks at.
var (
	decodeService = decodes[corev1.Service](fields{
		"metadata": metaFields,
		"spec": {
			"clusterIP": unique, "clusterIPs": unique, "externalIPs": unique, "externalTrafficPolicy": nil, "healthCheckNodePort": nil,
			"internalTrafficPolicy": nil, "ipFamilyPolicy": nil, "loadBalancerClass": nil, "loadBalancerIP": unique, "loadBalancerSourceRanges": unique,
			"ports":                    {"name": nil, "protocol": nil, "port": nil, "targetPort": nil, "nodePort": nil},
			"publishNotReadyAddresses": nil, "selector": nil, "sessionAffinity": nil, "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": nil}},
			"trafficDistribution": nil, "type": nil,
		},
		"status": {"loadBalancer": {"ingress": {"ip": unique, "ipMode": nil}}},
	})
	decodeSlice = decodes[discoveryv1.EndpointSlice](fields{
		"metadata": metaFields, "addressType": nil, "ports": {"name": nil, "protocol": nil, "port": nil},
		"endpoints": {
			"addresses": unique, "conditions": {"ready": nil, "serving": nil, "terminating": nil}, "nodeName": nil, "zone": nil,
			"hints": {"forZones": {"name": nil}, "forNodes": {"name": nil}},
		},
	})
	decodePod  = decodes[corev1.Pod](podFields)
	decodeNode = decodes[corev1.Node](fields{
		"metadata": metaFields, "spec": {"podCIDR": unique, "podCIDRs": unique, "taints": {"key": nil}},
		"status": {"addresses": {"type": nil, "address": unique}, "conditions": conditionFields},
	})
	decodeNamespace      = decodes[corev1.Namespace](fields{"metadata": metaFields})
	decodeServiceAccount = decodes[corev1.ServiceAccount](fields{"metadata": metaFields})
	decodeWorkload       = decodes[workload](fields{"metadata": metaFields, "spec": {"replicas": nil, "template": templateFields, "jobTemplate": {"spec": {"template": templateFields}}}})

	// decodeName reads the name of an object of any kind.
	decodeName = decodes[corev1.Namespace](fields{"metadata": {"name": unique, "namespace": nil}})

	podFields = fields{
		"metadata": metaFields,
		"spec":     podSpecFields,
		"status":   {"phase": nil, "podIP": unique, "podIPs": {"ip": unique}, "conditions": conditionFields},
	}
	templateFields  = fields{"metadata": metaFields, "spec": podSpecFields}
	podSpecFields   = fields{"nodeName": nil, "hostNetwork": nil, "serviceAccountName": nil, "containers": containerFields, "initContainers": containerFields}
	containerFields = fields{"ports": {"name": nil, "containerPort": nil, "protocol": nil}, "restartPolicy": nil}
	conditionFields = fields{"type": nil, "status": nil}
	metaFields      = fields{"name": unique, "namespace": nil, "labels": nil, "annotations": annotationFields(), "creationTimestamp": nil, "deletionTimestamp": nil}
)

// annotationFields are the annotations that kubeobj reads: others can be large.
func annotationFields() fields {
	all := fields{}
	for _, name := range kubeobj.Annotations {
		all[name] = nil
	}
	return all
}
