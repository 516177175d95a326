package kube

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A real API server takes all taints of a key away and leaves others, also one that somebody adds
// at the same moment, which makes the first attempt fail.
func TestRealUntaint(t *testing.T) {
	c := realAPI(t)
	const node, key = "tainted", "sluice.dev/agent-not-ready"
	c.put(t, nodes, `{"metadata":{"name":"`+node+`"}}`)
	set := func(taints string) {
		if code, answer := c.ask(t, http.MethodPatch, nodes+"/"+node, `{"spec":{"taints":[`+taints+`]}}`); code != http.StatusOK {
			t.Errorf("%d: %s", code, answer)
		}
	}
	keys := func() (list []string) {
		var o corev1.Node
		if code, answer := c.ask(t, http.MethodGet, nodes+"/"+node, ""); code != http.StatusOK || json.Unmarshal([]byte(answer), &o) != nil {
			t.Errorf("%d: %s", code, answer)
		}
		for _, taint := range o.Spec.Taints {
			list = append(list, taint.Key)
		}
		return list
	}
	const (
		ours   = `{"key":"` + key + `","effect":"NoSchedule"},{"key":"a","effect":"NoSchedule"},{"key":"` + key + `","effect":"NoExecute"}`
		before = `{"key":"b","effect":"NoSchedule"},`
	)
	set(ours)
	var mu sync.Mutex
	patches := 0
	m := c.meddler(t)
	m.set(func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		mu.Lock()
		defer mu.Unlock()
		if r.Method == http.MethodPatch {
			if patches++; patches == 1 {
				set(before + ours)
			}
		}
		pass.ServeHTTP(w, r)
	})
	path := t.TempDir() + "/kubeconfig"
	write(t, path, c.config(m.URL, ""))
	u := NewUntaint(Config{Kubeconfig: path}, node, key, silentLog)
	u.look, u.retry = time.Millisecond, time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { u.Run(ctx, func() bool { return slices.Contains(keys(), key) }) })
	defer func() { cancel(); running.Wait() }()
	waitFor(t, "the taints to go", func() bool { return !slices.Contains(keys(), key) })
	if got := keys(); !slices.Equal(got, []string{"b", "a"}) {
		t.Errorf("the taints %q stay", got)
	}
	set(ours) // as those of a node that registers again
	waitFor(t, "the taints to go again", func() bool { return slices.Equal(keys(), []string{"a"}) })
	mu.Lock()
	defer mu.Unlock()
	if patches != 3 {
		t.Errorf("%d patches, want one that fails and two that do not", patches)
	}
}

// Who puts the taint back each time is answered ever more slowly, and named.
func TestRealUntaintContested(t *testing.T) {
	c := realAPI(t)
	const node, key = "tainted-again", "sluice.dev/agent-not-ready"
	c.apply(t, nodes+"/"+node, `{"apiVersion":"v1","kind":"Node","metadata":{"name":"`+node+`","labels":{"a":"b"}}}`)
	put := func() {
		if code, answer := c.ask(t, http.MethodPatch, nodes+"/"+node+"?fieldManager=provisioner", `{"spec":{"taints":[{"key":"`+key+`","effect":"NoSchedule"}]}}`); code != http.StatusOK {
			t.Errorf("%d: %s", code, answer)
		}
	}
	is := func() bool {
		var o corev1.Node
		if code, answer := c.ask(t, http.MethodGet, nodes+"/"+node, ""); code != http.StatusOK || json.Unmarshal([]byte(answer), &o) != nil {
			t.Errorf("%d: %s", code, answer)
		}
		return slices.ContainsFunc(o.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == key })
	}
	put()
	path := t.TempDir() + "/kubeconfig"
	write(t, path, c.config(c.meddler(t).URL, ""))
	contested(t, NewUntaint(Config{Kubeconfig: path}, node, key, silentLog), is, put, "provisioner")
}
