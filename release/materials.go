package main

import (
	"bytes"
	"cmp"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"regexp"
	"runtime/debug"
	"slices"
	"time"

	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// materials writes the bill of materials, SPDX 2.3 in JSON: every module that is linked into a
// program, as the program itself says.
func (r *release) materials() error {
	modules := map[string]*debug.Module{}
	var goVersion string
	for _, arch := range r.arches {
		for _, p := range programs {
			info, err := buildinfo.ReadFile(r.binary(arch, p))
			if err != nil {
				return fmt.Errorf("read what %s is made of: %w", p, err)
			}
			goVersion = info.GoVersion
			for _, m := range info.Deps {
				if m.Replace != nil {
					m = m.Replace
				}
				modules[m.Path+"@"+m.Version] = m
			}
		}
	}
	all := slices.SortedFunc(func(yield func(*debug.Module) bool) {
		for _, m := range modules {
			if !yield(m) {
				return
			}
		}
	}, func(a, b *debug.Module) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Version, b.Version))
	})

	const noAssertion = "NOASSERTION"
	doc := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName: "sluice-" + r.version, DocumentNamespace: fmt.Sprintf("%s/spdx/sluice-%s", homepage, r.version),
		CreationInfo: &spdx.CreationInfo{Created: r.time.Format(time.RFC3339), Creators: []common.Creator{{CreatorType: "Organization", Creator: "The authors of Sluice"}}},
	}
	const self common.ElementID = "Package-sluice"
	add := func(p *spdx.Package, purl string) {
		p.PackageCopyrightText, p.PackageLicenseConcluded = noAssertion, cmp.Or(p.PackageLicenseDeclared, noAssertion)
		p.PackageLicenseDeclared = p.PackageLicenseConcluded
		p.PackageDownloadLocation = noAssertion
		p.PackageExternalReferences = []*spdx.PackageExternalReference{{Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: purl}}
		doc.Packages = append(doc.Packages, p)
		relation, from := common.TypeRelationshipContains, self
		if p.PackageSPDXIdentifier == self {
			relation, from = common.TypeRelationshipDescribe, "DOCUMENT"
		}
		doc.Relationships = append(doc.Relationships, &spdx.Relationship{
			RefA: common.MakeDocElementID("", string(from)), RefB: common.MakeDocElementID("", string(p.PackageSPDXIdentifier)), Relationship: relation,
		})
	}
	add(&spdx.Package{
		PackageName: "sluice", PackageVersion: r.version, PackageSPDXIdentifier: self, PackageLicenseDeclared: "Apache-2.0",
	}, "pkg:golang/sluice.dev/sluice@v"+r.version)
	add(&spdx.Package{PackageName: "stdlib", PackageVersion: goVersion, PackageSPDXIdentifier: "Package-go"}, "pkg:golang/stdlib@"+goVersion[len("go"):])
	notInIDs := regexp.MustCompile(`[^A-Za-z0-9.-]`)
	for _, m := range all {
		add(&spdx.Package{
			PackageName: m.Path, PackageVersion: m.Version,
			PackageSPDXIdentifier: common.ElementID("Module-" + notInIDs.ReplaceAllString(m.Path+"-"+m.Version, "-")),
		}, "pkg:golang/"+m.Path+"@"+m.Version)
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetIndent("", "  ")
	if err := enc.Encode(doc); err != nil {
		return fmt.Errorf("write the bill of materials: %w", err)
	}
	return r.write(fmt.Sprintf("sluice-%s.spdx.json", r.version), out.Bytes())
}
