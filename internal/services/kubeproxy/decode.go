package kubeproxy

import (
	"errors"
	"fmt"

	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Decode reads a file in YAML or JSON and fills in kube-proxy's defaults. Of several
// YAML documents it reads the first, as kube-proxy does.
//
// A field that is not known, or given twice, is ignored, as by kube-proxy:
// odd names it. Anything else that is at fault is an error.
func Decode(text []byte) (c *Config, odd, err error) {
	doc, odd := yaml.YAMLToJSONStrict(text)
	if odd != nil {
		if doc, err = yaml.YAMLToJSON(text); err != nil {
			return nil, nil, fmt.Errorf("parse configuration: %w", err)
		}
	}
	var head struct {
		Kind       string `json:"kind"`
		APIVersion string `json:"apiVersion"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(doc, &head); err != nil {
		return nil, nil, fmt.Errorf("read apiVersion and kind: %w", err)
	}
	if head.Kind != Kind || head.APIVersion != APIVersion {
		return nil, nil, fmt.Errorf("apiVersion %q, kind %q: this is not a configuration of kube-proxy, which has apiVersion: %s and kind: %s",
			head.APIVersion, head.Kind, APIVersion, Kind)
	}
	c = &Config{}
	faults, err := kjson.UnmarshalStrict(doc, c)
	if err != nil {
		return nil, nil, fmt.Errorf("read fields: %w", err)
	}
	if odd = errors.Join(append(faults, odd)...); odd != nil {
		odd = fmt.Errorf("passed over: %w", odd)
	}
	c.fill()
	return c, odd, nil
}

// Encode writes the configuration as a file in YAML.
func (c *Config) Encode() ([]byte, error) {
	text, err := yaml.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode configuration: %w", err)
	}
	return text, nil
}
