package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"sluice.dev/sluice/internal/contest"
	"sluice.dev/sluice/internal/driver/fabric"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kube"
	"sluice.dev/sluice/internal/source/kubeobj"
	"sluice.dev/sluice/internal/store"
)

// keyPath is where the node's private key is: beside the socket, so that the next boot makes
// another.
func keyPath(socket string) string { return filepath.Join(filepath.Dir(socket), "wireguard.key") }

// nodeKey reads the node's private key, as 'wg genkey' prints it, and makes one where there is
// none.
func nodeKey(path string) (key [32]byte, err error) {
	if key, err = readKey(path); errors.Is(err, fs.ErrNotExist) {
		return newNodeKey(path)
	}
	if err != nil {
		return key, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return key, fmt.Errorf("protect key for WireGuard: %w", err)
	}
	return key, nil
}

// readKey reads the node's private key. Where there is none, the error wraps fs.ErrNotExist.
func readKey(path string) (key [32]byte, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return key, fmt.Errorf("read key for WireGuard: %w", err)
	}
	decoded, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(decoded) != len(key) {
		return key, fmt.Errorf("%s holds no key for WireGuard: remove it, and the node gets another", path)
	}
	return [32]byte(decoded), nil
}

func newNodeKey(path string) (key [32]byte, err error) {
	if key, err = fabric.NewKey(); err != nil {
		return key, fmt.Errorf("make key for WireGuard: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return key, fmt.Errorf("write key for WireGuard: %w", err)
	}
	next := path + ".next" // so that there is never half a key
	if err = os.WriteFile(next, []byte(base64.StdEncoding.EncodeToString(key[:])+"\n"), 0o600); err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		return key, errors.Join(fmt.Errorf("write key for WireGuard: %w", err), os.RemoveAll(next))
	}
	return key, nil
}

// publishKey has this node's Node say its key for WireGuard, or none if it has none.
func (o *runOptions) publishKey(ctx context.Context, node string, key model.PublicKey, objects *store.Store, contests *contest.Board, log *slog.Logger) {
	if !o.kubeFlags.named() {
		return // whoever writes the manifests does it: a fault says so
	}
	text := ""
	if key != (model.PublicKey{}) {
		text = key.String()
	}
	a := kube.NewAnnotation(o.kubeFlags.api(false), node, kubeobj.WireGuardAnnotation, text, log)
	a.Contests = contests
	go a.Run(ctx, func() bool {
		n := objects.Node(node)
		return n != nil && n.Key() != key
	})
}
