package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/driver"
	fabric "sluice.dev/sluice/internal/fabric/kernel"
	"sluice.dev/sluice/internal/reconcile"
	"sluice.dev/sluice/internal/state"
)

// planFabric compares tunnels and routes with the kernel, if there are to be any. They are
// encrypted if there is a private key.
func planFabric(ctx context.Context, c *compile.Compiler, private [32]byte, lacking reconcile.Lacking) (agent.Plan, error) {
	if c.State().Fabric == nil {
		return agent.Plan{}, nil
	}
	d, err := fabric.Open(driver.Options{})
	if err != nil {
		return agent.Plan{}, err
	}
	defer func() { _ = d.Close() }()
	if private != [32]byte{} {
		if err := d.Encrypt(private); err != nil {
			return agent.Plan{}, fmt.Errorf("--encrypt: %w", err)
		}
	}
	plan, err := reconcile.Adopt(ctx, d, &state.State{Fabric: c.State().Fabric}, lacking, nil)
	if err != nil {
		return agent.Plan{}, err
	}
	return agent.Plan{Operations: plan.Len(), Text: plan.String()}, nil
}

// withKey has the compiler know the node's key, if packets are to be encrypted, and returns the
// private one: any where the agent is yet to make one.
func withKey(c *compile.Config, encrypt bool, socket string, warn io.Writer) (key [32]byte, err error) {
	if !encrypt {
		return key, nil
	}
	path := keyPath(socket)
	if key, err = readKey(path); errors.Is(err, fs.ErrNotExist) {
		_ = printf(warn, "warning: there is no %s: the agent makes a key, not the one of this plan\n", path)
		key, err = fabric.NewKey()
	}
	c.WireGuard = fabric.PublicKey(key)
	return key, err
}
