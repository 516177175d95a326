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
	fabric "sluice.dev/sluice/internal/fabric/kernel"
	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/lib/replace"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kube"
	"sluice.dev/sluice/internal/source/kubeobj"
	"sluice.dev/sluice/internal/store"
)

// keyPath names the private keys of nodes: beside the socket, so that the next boot makes others.
// Each network namespace has a file of its own, see netns.Own.
func keyPath(socket string) string { return filepath.Join(filepath.Dir(socket), "wireguard.key") }

// nodeKey reads the calling thread's network namespace's private key, and makes one where there is
// none.
func nodeKey(path string) (key [32]byte, err error) {
	own, err := netns.Own(path)
	if err != nil {
		return key, fmt.Errorf("read key for WireGuard: %w", err)
	}
	if _, err := os.Lstat(own); errors.Is(err, fs.ErrNotExist) {
		_ = os.Rename(path, own) // releases that had one file for all left it; mostly there is none
	}
	if key, err = readKey(path); errors.Is(err, fs.ErrNotExist) {
		return newNodeKey(own)
	}
	if err != nil {
		return key, err
	}
	if err := os.Chmod(own, 0o600); err != nil {
		return key, fmt.Errorf("protect key for WireGuard: %w", err)
	}
	return key, nil
}

// readKey reads the calling thread's network namespace's private key. Where there is none, the
// error wraps fs.ErrNotExist.
func readKey(path string) (key [32]byte, err error) {
	own, err := netns.Own(path)
	if err != nil {
		return key, fmt.Errorf("read key for WireGuard: %w", err)
	}
	text, err := os.ReadFile(own)
	if errors.Is(err, fs.ErrNotExist) {
		own = path
		text, err = os.ReadFile(own)
	}
	if err != nil {
		return key, fmt.Errorf("read key for WireGuard: %w", err)
	}
	encoded, of, scoped := strings.Cut(strings.TrimSpace(string(text)), "\n")
	decoded, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || len(decoded) != len(key) {
		return key, fmt.Errorf("%s holds no key for WireGuard: remove it, and the node gets another", own)
	}
	scope, err := netns.Scope()
	if err == nil && scoped && of != scope {
		err = fmt.Errorf("%s is of a network namespace that is gone: %w", own, fs.ErrNotExist)
	}
	return [32]byte(decoded), err
}

// newNodeKey writes a key as 'wg genkey' prints it, and whose it is in the next line.
func newNodeKey(path string) (key [32]byte, err error) {
	if key, err = fabric.NewKey(); err != nil {
		return key, fmt.Errorf("make key for WireGuard: %w", err)
	}
	scope, err := netns.Scope()
	if err != nil {
		return key, fmt.Errorf("make key for WireGuard: %w", err)
	}
	if err := replace.File(path, []byte(base64.StdEncoding.EncodeToString(key[:])+"\n"+scope+"\n"), 0o600); err != nil {
		return key, fmt.Errorf("write key for WireGuard: %w", err)
	}
	return key, nil
}

// removeNodeKey removes the calling thread's network namespace's private key, if there is one.
func removeNodeKey(path string) error {
	own, err := netns.Own(path)
	if err == nil {
		err = os.Remove(own)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove key for WireGuard: %w", err)
	}
	return nil
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
	annotation := kube.NewAnnotation(o.kubeFlags.api(false), node, kubeobj.WireGuardAnnotation, text, log)
	go changeNode(ctx, annotation, node, objects, contests, func(n *model.Node) bool { return n.Key() != key })
}
