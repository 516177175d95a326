package ipvs

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	nftlb "sluice.dev/sluice/internal/balancer/config"
	"sluice.dev/sluice/internal/balancer/importer"
)

// What 'sluice import keepalived --mode ipvs' makes of each file is taken by the balancer of that
// mode.
func TestImportedFarms(t *testing.T) {
	const dir = "../../balancer/importer/testdata"
	files, err := filepath.Glob(dir + "/*.conf")
	if err != nil || len(files) == 0 {
		t.Fatalf("files of keepalived: %v, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		doc, _, err := importer.Keepalived(bytes.NewReader(text), importer.Options{IPVS: true})
		if err != nil {
			continue // nothing of it is for this mode
		}
		config := filepath.Join(t.TempDir(), "farms.json")
		out := nftlb.Document.JSON(doc)
		if err := os.WriteFile(config, out, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := nftlb.New(nil, nftlb.Options{Check: checkFarm, DSRTracks: true}).Load(t.Context(), config); err != nil {
			t.Errorf("%s: %v\n%s", file, err, out)
		}
	}
}
