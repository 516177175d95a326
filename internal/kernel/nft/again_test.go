package nft

import "testing"

func TestMisses(t *testing.T) {
	for release, want := range map[string]bool{
		"6.1.0-41-amd64": true, "5.15.167": true, "4.19.0": true, "6.12.47+deb13-amd64": true, "6.12.48+deb13-amd64": false, "6.12.57": false,
		"6.13.12": true, "6.16.7": true, "6.16.8-arch1-1": false, "6.17.0": false, "6.18.44": false, "7.0-rc1": false, "7.1.2": false, "unknown": true,
	} {
		if got := misses(release); got != want {
			t.Errorf("%s: %t, want %t", release, got, want)
		}
	}
}
