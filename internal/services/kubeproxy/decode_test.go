package kubeproxy

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDecodeErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                             "this is not a configuration of kube-proxy",
		"kind: KubeProxyConfiguration": `apiVersion "", kind "KubeProxyConfiguration"`,
		"kind: [":                      "parse configuration",
		"- a":                          "read apiVersion and kind",
		"apiVersion: kubeproxy.config.k8s.io/v1\nkind: KubeProxyConfiguration": "has apiVersion: kubeproxy.config.k8s.io/v1alpha1",
		head + "oomScoreAdj: much":       "read fields",
		head + "configSyncPeriod: 5":     "read fields",
		head + "configSyncPeriod: 5 min": "read fields",
		head + "mode: {}":                "read fields",
	} {
		if _, _, err := Decode([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

// As with kube-proxy, fields that are not known or there twice don't keep the rest from being read.
func TestOddFields(t *testing.T) {
	for text, want := range map[string]string{
		"bindAdress: 192.0.2.1":                `unknown field "bindAdress"`,
		"BindAddress: 192.0.2.1":               `unknown field "BindAddress"`,
		"conntrack: {maxPerCpu: 1}":            `unknown field "conntrack.maxPerCpu"`,
		"bindAddress: '::'\nbindAddress: '::'": `key "bindAddress" already set`,
	} {
		c, odd, err := Decode([]byte(head + "mode: nftables\n" + text))
		if err != nil || odd == nil || !strings.Contains(odd.Error(), want) {
			t.Errorf("%q: passed over %v, %v; want %s", text, odd, err, want)
		}
		if c == nil || c.Mode != ModeNFTables {
			t.Errorf("%q: the rest is not read", text)
		}
	}
}

// Of several documents the first counts; JSON is YAML.
func TestForms(t *testing.T) {
	for _, text := range []string{
		head + "mode: nftables\n---\nmode: ipvs\n",
		`{"apiVersion":"` + APIVersion + `","kind":"` + Kind + `","mode":"nftables"}`,
	} {
		if c, odd, err := Decode([]byte(text)); err != nil || odd != nil || c.Mode != ModeNFTables {
			t.Errorf("%q: %+v, %v, %v", text, c, odd, err)
		}
	}
}

// FuzzDecode finds no file that makes reading it panic, and none whose settings change when what
// was read is written and read again.
func FuzzDecode(f *testing.F) {
	for _, name := range []string{"kubeadm", "full", "kind"} {
		text, err := os.ReadFile("testdata/" + name + ".yaml")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, _, err := Decode(text)
		if err != nil {
			return
		}
		first, err := c.Settings(ModeNFTables)
		if err != nil {
			return
		}
		again, err := c.Encode()
		if err != nil {
			t.Fatal(err)
		}
		c, odd, err := Decode(again)
		if err != nil || odd != nil {
			t.Fatalf("%v, %v: %s", odd, err, again)
		}
		second, err := c.Settings(ModeNFTables)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(first, second, cmp.Comparer(comparePrefixes), cmp.Comparer(compareAddrs)); diff != "" {
			t.Errorf("%s\n%s", diff, again)
		}
	})
}
