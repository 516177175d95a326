package world

import "github.com/safchain/ethtool"

// Feature turns a feature of a device on or off, as ethtool -K does: "rx-gro".
func (h *Host) Feature(device, name string, on bool) {
	h.t.Helper()
	h.In(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		return e.Change(device, map[string]bool{name: on})
	})
}
