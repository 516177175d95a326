package manifest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/internal/store"
)

// serviceJSON and sliceJSON are objects in the shape in which an API server
// hands them out, without the managed fields.
func serviceJSON(i int) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"svc-%06d","namespace":"bench","uid":"6f1a0d3e-0000-4000-8000-%012d","resourceVersion":"%d","creationTimestamp":"2026-01-01T00:00:00Z","labels":{"app":"svc-%[1]d"}},"spec":{"ports":[{"name":"http","protocol":"TCP","port":80,"targetPort":8080}],"selector":{"app":"svc-%[1]d"},"clusterIP":"10.%[4]d.%[5]d.%[6]d","clusterIPs":["10.%[4]d.%[5]d.%[6]d"],"type":"ClusterIP","sessionAffinity":"None","ipFamilies":["IPv4"],"ipFamilyPolicy":"SingleStack","internalTrafficPolicy":"Cluster"},"status":{"loadBalancer":{}}}
`, i, i, i, 64+i>>16, i>>8&255, i&255)
}

func sliceJSON(i, endpoints int) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"svc-%06d-abcde","namespace":"bench","labels":{"kubernetes.io/service-name":"svc-%06d"}},"addressType":"IPv4","ports":[{"name":"http","protocol":"TCP","port":8080}],"endpoints":[`, i, i)
	for e := range endpoints {
		if e > 0 {
			b.WriteByte(',')
		}
		n := i*endpoints + e
		fmt.Fprintf(&b, `{"addresses":["10.%d.%d.%d"],"conditions":{"ready":true,"serving":true,"terminating":false},"nodeName":"node-%d","targetRef":{"kind":"Pod","namespace":"bench","name":"svc-%06d-%d"},"zone":"zone-%c"}`,
			128+n>>16&127, n>>8&255, n&255, n%100, i, e, 'a'+n%3)
	}
	b.WriteString("]}\n")
	return b.String()
}

// benchFolder writes services and slices, each in a file of its own.
func benchFolder(b *testing.B, services, endpoints int) string {
	dir := b.TempDir()
	for i := range services {
		write(b, filepath.Join(dir, fmt.Sprintf("svc-%06d.json", i)), serviceJSON(i))
		write(b, filepath.Join(dir, fmt.Sprintf("eps-%06d.json", i)), sliceJSON(i, endpoints))
	}
	return dir
}

// benchLists writes a million endpoints in files of many slices each.
func benchLists(b *testing.B, slices, perFile int) string {
	dir := b.TempDir()
	for first := 0; first < slices; first += perFile {
		var list bytes.Buffer
		list.WriteString(`{"apiVersion":"v1","kind":"List","items":[`)
		for i := range perFile {
			if i > 0 {
				list.WriteByte(',')
			}
			list.WriteString(serviceJSON(first + i))
			list.WriteByte(',')
			list.WriteString(sliceJSON(first+i, 10))
		}
		list.WriteString("]}")
		write(b, filepath.Join(dir, fmt.Sprintf("list-%06d.json", first)), list.String())
	}
	return dir
}

// policyJSON is a NetworkPolicy of two rules, as an API server hands it out.
func policyJSON(i int) string {
	return fmt.Sprintf(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"policy-%06d","namespace":"bench","uid":"6f1a0d3e-0000-4000-8000-%012d","resourceVersion":"%d","creationTimestamp":"2026-01-01T00:00:00Z","labels":{"app":"svc-%[1]d"}},"spec":{"podSelector":{"matchLabels":{"app":"svc-%[1]d"}},"policyTypes":["Ingress","Egress"],"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"svc-%[4]d"}}},{"namespaceSelector":{"matchLabels":{"team":"t-%[5]d"}},"podSelector":{"matchExpressions":[{"key":"role","operator":"In","values":["a","b"]}]}}],"ports":[{"port":8080,"protocol":"TCP"}]}],"egress":[{"to":[{"ipBlock":{"cidr":"10.%[5]d.0.0/16","except":["10.%[5]d.1.0/24"]}}],"ports":[{"port":5432,"protocol":"TCP"},{"port":53,"protocol":"UDP"}]}]}}
`, i, i, i, i+1, i%100)
}

// BenchmarkStartPolicies reads 10,000 policies: in a file each, or all in one.
func BenchmarkStartPolicies(b *testing.B) {
	const policies = 10000
	for _, c := range []struct {
		name, suffix string
		files        int
	}{{"json", ".json", policies}, {"yaml", ".yaml", policies}, {"one-json", ".json", 1}, {"one-yaml", ".yaml", 1}} {
		b.Run(c.name, func(b *testing.B) {
			dir := b.TempDir()
			for f := range c.files {
				var text bytes.Buffer
				for i := f; i < policies; i += c.files {
					text.WriteString(policyText(b, c.suffix, i))
				}
				write(b, filepath.Join(dir, fmt.Sprintf("policy-%06d%s", f, c.suffix)), text.String())
			}
			for b.Loop() {
				s, end := start(b, dir)
				if n := s.Status().Objects["NetworkPolicy"]; n != policies {
					b.Fatalf("%d policies", n)
				}
				end()
			}
		})
	}
}

// policyText is policyJSON for a file of this name.
func policyText(b *testing.B, name string, i int) string {
	if isJSON(name) {
		return policyJSON(i)
	}
	text, err := yaml.JSONToYAML([]byte(policyJSON(i)))
	must(b, err)
	return string(text) + "---\n"
}

// discard takes everything and keeps nothing.
type discard struct{ synced chan struct{} }

func (discard) Apply([]store.Event) {}
func (d discard) SetSynced()        { close(d.synced) }

// start runs a source until it is synced, and returns how to end it.
func start(b *testing.B, dir string) (s *Source, end func()) {
	d := discard{make(chan struct{})}
	s = New(dir, false, d, slog.New(slog.DiscardHandler))
	ctx, cancel := newContext()
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	<-d.synced
	return s, func() { cancel(); <-done }
}

func BenchmarkStart(b *testing.B) {
	for _, services := range []int{1000, 10000} {
		b.Run(fmt.Sprintf("%dx10", services), func(b *testing.B) {
			dir := benchFolder(b, services, 10)
			for b.Loop() {
				_, end := start(b, dir)
				end()
			}
		})
	}
	for _, perFile := range []int{1000, 10000} {
		b.Run(fmt.Sprintf("100000x10in%d", 100000/perFile), func(b *testing.B) {
			dir := benchLists(b, 100000, perFile)
			for b.Loop() {
				_, end := start(b, dir)
				end()
			}
		})
	}
}

// BenchmarkChange measures from the first write to the last event at the sink,
// the writing included, with 10,000 services of 10 endpoints in the folder.
func BenchmarkChange(b *testing.B) {
	dir := benchFolder(b, 10000, 10)
	for _, files := range []int{1, 1000} {
		b.Run(fmt.Sprintf("%dfiles", files), func(b *testing.B) {
			measureChange(b, dir, files)
		})
	}
}

// counter tells of each event.
type counter struct{ events chan int }

func (c counter) Apply(e []store.Event) { c.events <- len(e) }
func (c counter) SetSynced()            {}

func measureChange(b *testing.B, dir string, files int) {
	c := counter{make(chan int, 10000)}
	s := New(dir, false, c, slog.New(slog.DiscardHandler))
	ctx, cancel := newContext()
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	defer func() { cancel(); <-done }()
	<-c.events
	round := 0
	var spent time.Duration
	for b.Loop() {
		round++
		contents := make([]string, files)
		for i := range contents {
			contents[i] = sliceJSON(i, 10-round%2)
		}
		begin := time.Now()
		for i, content := range contents {
			_ = os.WriteFile(filepath.Join(dir, fmt.Sprintf("eps-%06d.json", i)), []byte(content), 0o644)
		}
		for n := 0; n < files; {
			n += <-c.events
		}
		spent += time.Since(begin)
	}
	b.ReportMetric(float64(spent.Microseconds())/float64(b.N), "µs/change")
}

func BenchmarkParse(b *testing.B) {
	for name, data := range map[string][]byte{
		"service":  []byte(serviceJSON(1)),
		"slice":    []byte(sliceJSON(1, 10)),
		"slice100": []byte(sliceJSON(1, 100)),
	} {
		b.Run(name, func(b *testing.B) {
			p := newParsers(false)[0]
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if c := p.parse("x.json", data, nil); len(c.objects) != 1 {
					b.Fatal(c)
				}
			}
		})
	}
}

// BenchmarkReflection decodes a slice the way that this package does not: into the same type, by
// encoding/json.
func BenchmarkReflection(b *testing.B) {
	data := []byte(sliceJSON(1, 10))
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if err := json.Unmarshal(data, new(discoveryv1.EndpointSlice)); err != nil {
			b.Fatal(err)
		}
	}
}

func newContext() (context.Context, context.CancelFunc) {
	return context.WithCancel(context.Background())
}

// BenchmarkWalk looks at all files when none has changed.
func BenchmarkWalk(b *testing.B) {
	s, end := start(b, benchFolder(b, 10000, 10))
	defer end()
	for b.Loop() {
		if err := s.Flush(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
