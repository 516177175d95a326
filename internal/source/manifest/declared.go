package manifest

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/model"
)

// Declared is an object of a file, and where it is declared.
type Declared struct {
	Object model.Object
	Source string // "web.yaml:12"
}

// Contents is what a file declares.
type Contents struct {
	Objects []Declared
	// Issues say what is at fault, with its place; the object may be there all the same, as what a
	// source delivers. Hints name what has no effect, though nobody would miss it.
	Issues, Hints []model.Issue
}

// Counts are counts of the objects of all files.
type Counts struct {
	Read    int            // as they are, or a workload for its pods
	Unread  int            // which issues and hints name
	Nothing map[string]int // by kind, those that are nothing to Sluice
}

// Declarations reads files as users give them to a Kubernetes API, before it has added anything:
// for a Service without an address one is made up that no other has, and the pods of a Deployment
// or another workload are one Pod without an address, of the name "web (Deployment)", those of a
// StatefulSet as many as it has replicas.
type Declarations struct {
	parser parser
}

// NewDeclarations returns a reader of files that belong together.
func NewDeclarations() *Declarations {
	return &Declarations{parser{seed: maphash.MakeSeed(), declared: &declared{counts: Counts{Nothing: map[string]int{}}}}}
}

// declared is what is kept from file to file.
type declared struct {
	services uint32 // that have made-up addresses
	counts   Counts
	hints    []model.Issue // of the present file
}

// Read reads a file: JSON if its name ends in .json, and otherwise YAML.
func (d *Declarations) Read(name string, data []byte) (Contents, error) {
	d.parser.declared.hints = nil
	c, err := d.parser.parseSafely(name, data, nil)
	if err != nil {
		return Contents{}, err
	}
	found := Contents{Issues: c.issues, Hints: d.parser.declared.hints}
	for _, o := range c.objects {
		if o.value != nil {
			found.Objects = append(found.Objects, Declared{o.value.(model.Object), fmt.Sprintf("%s:%d", name, o.line)})
		}
	}
	return found, nil
}

// Counts returns what has been read so far.
func (d *Declarations) Counts() Counts { return d.parser.declared.counts }

// assign gives a Service the address that the API server would choose.
func (d *declared) assign(o *corev1.Service) {
	if o.Spec.ClusterIP != "" || len(o.Spec.ClusterIPs) > 0 || o.Spec.Type == corev1.ServiceTypeExternalName {
		return
	}
	d.services++
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], 198<<24|18<<16+d.services) // 198.18.0.0/15, which no network has
	o.Spec.ClusterIP = netip.AddrFrom4(a).String()
}
