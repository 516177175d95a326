// Command dashboard reads a Grafana dashboard on its standard input, and fails unless it is as
// Grafana's schemas say, without a field that they do not have.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func main() {
	plugins.RegisterDefaultPlugins() // without which options of panels are not looked at
	//lint:ignore SA1019 every Grafana takes this model, and only the latest the one after it
	var d dashboard.Dashboard
	text, err := io.ReadAll(os.Stdin)
	if err == nil {
		err = d.UnmarshalJSONStrict(text)
	}
	err = errors.Join(err, d.Validate())
	if err != nil && err.Error() != "" { // a list of errors without any is none
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
