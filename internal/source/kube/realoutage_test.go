package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sluice.dev/sluice/test/lab/control"
)

// version returns the API's current version.
func (c *realCluster) version(t *testing.T) string {
	t.Helper()
	_, answer := c.ask(t, http.MethodGet, services+"?limit=1", "")
	var list struct {
		Metadata struct{ ResourceVersion string }
	}
	if err := json.Unmarshal([]byte(answer), &list); err != nil {
		t.Fatal(err)
	}
	return list.Metadata.ResourceVersion
}

// compact makes etcd drop its history.
func (c *realCluster) compact(t *testing.T) {
	t.Helper()
	etcd := &http.Client{Transport: &http.Transport{DialContext: c.Dial}}
	defer etcd.CloseIdleConnections()
	body := fmt.Sprintf(`{"revision":%q,"physical":true}`, c.version(t))
	answer, err := etcd.Post("http://127.0.0.1:2379/v3/kv/compaction", "application/json", bytes.NewBufferString(body))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusOK {
		t.Fatalf("compact: %s %s", answer.Status, text)
	}
}

func (c *realCluster) restart(t *testing.T, component string) {
	t.Helper()
	if err := c.Restart(t.Context(), component); err != nil {
		t.Fatal(err)
	}
	c.admin.CloseIdleConnections()
}

func (c *realCluster) kill(t *testing.T, component string) {
	t.Helper()
	if err := c.Kill(component); err != nil {
		t.Fatal(err)
	}
	c.admin.CloseIdleConnections()
}

const webOn = `{"metadata":{"name":"web","namespace":"shop"},"spec":{"ports":[{"name":"http","port":%d,"targetPort":8080}]}}`

// After an API server was restarted, cut off or has lost its history, only changes are delivered,
// and nothing is withdrawn. TestRealEarly has one that is killed.
func TestRealOutage(t *testing.T) {
	c := brokenAPI(t)
	names := c.shop(t)
	way := c.forward(t)
	f := followReal(t, c.user(t, way.url(), "outage", allResources...))
	f.waitSynced()
	f.waitOwn(names...)
	port := 80
	change := func() {
		port++
		c.put(t, services, fmt.Sprintf(webOn, port))
	}
	arrives := func() { f.wait("a change", func() bool { return f.port("web") == uint16(port) }) }
	for _, outage := range []struct {
		name string
		is   func()
	}{
		{"cut", way.cut},
		{"storage away", func() {
			c.restart(t, control.Etcd)
			waitFor(t, "storage", func() bool { code, _ := c.ask(t, http.MethodGet, "/readyz", ""); return code == 200 })
		}},
		{"cut off, and changed meanwhile", func() {
			way.block(true)
			f.waitIssue("Kubernetes API")
			change()
			way.block(false)
		}},
		{"history lost meanwhile", func() {
			way.block(true)
			f.waitIssue("Kubernetes API")
			change()
			c.compact(t)
			c.restart(t, control.APIServer)
			c.compact(t)
			way.block(false)
		}},
		{"history lost", func() { c.compact(t); way.cut() }},
	} {
		t.Run(outage.name, func(t *testing.T) {
			before := port
			events := f.delivered(func() {
				outage.is()
				f.waitNoIssue()
				arrives()
				f.flush()
			})
			if events != port-before {
				t.Errorf("%d changes came with %d events", port-before, events)
			}
			if events := f.delivered(func() { change(); arrives() }); events != 1 {
				t.Errorf("a change thereafter came with %d events", events)
			}
			f.waitOwn(names...)
		})
	}
}

// A new, empty cluster under the same address is recognised once it lets us read it; until then,
// everything stays.
func TestRealNewCluster(t *testing.T) {
	c := brokenAPI(t)
	names := c.shop(t)
	way := c.forward(t)
	f := followReal(t, c.user(t, way.url(), "wiped", allResources...), func(t *timing) { t.outage = time.Millisecond })
	f.waitSynced()
	f.waitOwn(names...)
	c.kill(t, control.APIServer)
	c.kill(t, control.Etcd)
	if err := os.RemoveAll(filepath.Join(c.dir, "etcd")); err != nil {
		t.Fatal(err)
	}
	c.restart(t, control.Etcd)
	c.restart(t, control.APIServer)
	f.waitIssue("Service", "apiGroups")
	f.waitOwn(names...)
	c.put(t, namespaces, `{"metadata":{"name":"shop"}}`)
	c.put(t, services, service("new", 90))
	c.user(t, way.url(), "wiped", allResources...)
	f.waitOwn("Namespace shop", "Service shop/new")
	f.waitNoIssue()
}

// An API server that is just starting refuses requests that it will allow, and lacks kinds that it
// will serve. The source believes neither: not one that starts meanwhile, nor one that was there
// before, which withdraws nothing.
func TestRealEarly(t *testing.T) {
	c := brokenAPI(t)
	c.define(t, clusterPolicies(t), cluster)
	c.put(t, cluster, clusterPolicy("shop-a", 1))
	names := append(c.shop(t), "ClusterNetworkPolicy shop-a")
	way := c.forward(t)
	config := c.user(t, way.url(), "early", allResources...)
	old := followReal(t, config)
	old.waitSynced()
	old.waitOwn(names...)
	port := 80
	for range 2 {
		c.kill(t, control.APIServer)
		old.waitIssue("Kubernetes API")
		old.waitOwn(names...)
		early := followReal(t, config)
		early.waitIssue("Kubernetes API")
		events := old.delivered(func() {
			c.restart(t, control.APIServer)
			early.waitSynced()
			if l := early.source.Status().Lacking; l != nil {
				t.Errorf("synced while it lacks %q", l)
			}
			early.waitOwn(names...)
			early.waitNoIssue()
			old.waitNoIssue()
			old.flush()
		})
		if events != 0 {
			t.Errorf("nothing changed, and came with %d events", events)
		}
		early.end()
		port++
		events = old.delivered(func() {
			c.put(t, services, fmt.Sprintf(webOn, port))
			old.wait("a change", func() bool { return old.port("web") == uint16(port) })
		})
		if events != 1 {
			t.Errorf("a change thereafter came with %d events", events)
		}
		old.waitOwn(names...)
	}
}
