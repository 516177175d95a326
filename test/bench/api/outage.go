package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"sluice.dev/sluice/test/bench/cluster"
)

// Delete deletes an object.
func (s *Server) Delete(ctx context.Context, o cluster.File) error {
	path, name, err := pathOf(o.JSON)
	if err != nil {
		return err
	}
	_, err = s.send(ctx, http.MethodDelete, path+"/"+name+"?gracePeriodSeconds=0", nil) // no kubelet reports that a pod has ended
	return err
}

// Create creates an object.
func (s *Server) Create(ctx context.Context, o cluster.File) error {
	path, _, err := pathOf(o.JSON)
	if err != nil {
		return err
	}
	_, err = s.send(ctx, http.MethodPost, path, o.JSON)
	return err
}

// CreateRunning creates a pod and writes its status as its kubelet would.
func (s *Server) CreateRunning(ctx context.Context, pod cluster.File) error {
	if err := s.Create(ctx, pod); err != nil {
		return err
	}
	path, name, err := pathOf(pod.JSON)
	if err == nil {
		_, err = s.send(ctx, http.MethodPut, path+"/"+name+"/status", pod.JSON)
	}
	return err
}

// Compact makes etcd drop its history: a client that is behind must list everything again.
func (s *Server) Compact(ctx context.Context) error {
	client := &http.Client{Transport: &http.Transport{DialContext: s.Dial, DisableKeepAlives: true}}
	var now struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}
	// Any key will do: each answer has the revision.
	err := askEtcd(ctx, client, "range", map[string]any{"key": []byte("x"), "count_only": true}, &now)
	if err == nil {
		err = askEtcd(ctx, client, "compaction", map[string]any{"revision": now.Header.Revision, "physical": true}, nil)
	}
	if err != nil {
		return fmt.Errorf("compact etcd: %w", err)
	}
	return nil
}

// askEtcd uses etcd's JSON gateway (https://etcd.io/docs/latest/dev-guide/api_grpc_gateway/).
func askEtcd(ctx context.Context, client *http.Client, what string, question, answer any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1:2379/v3/kv/"+what, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", resp.Status, text)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(text, answer)
}
