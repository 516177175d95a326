// Command operator reads objects in YAML on its standard input, and fails unless those for
// Prometheus Operator have no field that its API does not know. It passes over other objects.
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	text, err := io.ReadAll(os.Stdin)
	for _, object := range bytes.Split(text, []byte("\n---\n")) {
		if err == nil {
			err = check(object)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func check(object []byte) error {
	var of struct{ Kind string }
	if err := yaml.Unmarshal(object, &of); err != nil {
		return err
	}
	switch of.Kind {
	case monitoringv1.PodMonitorsKind:
		return yaml.UnmarshalStrict(object, &monitoringv1.PodMonitor{})
	case monitoringv1.PrometheusRuleKind:
		return yaml.UnmarshalStrict(object, &monitoringv1.PrometheusRule{})
	}
	return nil
}
