// Package examples holds applications to try Sluice with, as plain Kubernetes
// manifests: use them with `sluice lab up examples/shop`, or with kubectl on any cluster.
package examples

import (
	"embed"
	"io/fs"
)

//go:embed shop
var files embed.FS

// Shop is the folder of the shop's manifests.
func Shop() fs.FS {
	shop, err := fs.Sub(files, "shop")
	if err != nil {
		panic(err) // the name is a constant
	}
	return shop
}
