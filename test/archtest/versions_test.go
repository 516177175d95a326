package archtest_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestVersions has the modules that use Kubernetes' client libraries agree on every module that
// they share: each other version would compile those libraries again, for a minute and a half.
// (Modules that build releases of others take the versions of those.)
func TestVersions(t *testing.T) {
	required := regexp.MustCompile(`(?m)^\t?(?:require )?(\S+\.\S+/\S+) (v\S+)`)
	first := map[string][2]string{} // of a module that is required, the version and who requires it
	for _, dir := range []string{".", "test/kube/helm", "test/monitoring"} {
		text, err := os.ReadFile(filepath.Join("../..", dir, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		found := required.FindAllSubmatch(text, -1)
		if len(found) < 50 {
			t.Errorf("%s: read %d requirements", dir, len(found))
		}
		for _, m := range found {
			name, version := string(m[1]), string(m[2])
			if one, ok := first[name]; ok && one[0] != version {
				t.Errorf("%s requires %s %s, and %s %s: give both the newer, with go get", one[1], name, one[0], dir, version)
			} else if !ok {
				first[name] = [2]string{version, dir}
			}
		}
	}
}
