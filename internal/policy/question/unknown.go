package question

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// maxNearest bounds how many names are offered for one that nothing has.
const maxNearest = 3

// unknown says that nothing has the name, and what has one like it.
func unknown(v *store.View, e End, name model.Name) error {
	var names []string
	if e.Kind == "" || e.Kind == Pod {
		for _, pod := range v.Pods() {
			names = append(names, pod.Name.String())
		}
	}
	if e.Kind == "" || e.Kind == Service {
		for _, svc := range v.ServiceNames() {
			names = append(names, "svc/"+svc.String())
		}
	}
	if e.Kind == "" || e.Kind == Node {
		for _, node := range v.NodeNames() {
			names = append(names, "node/"+node)
		}
	}
	what := map[Kind]string{"": "pod, service or node", Pod: "pod", Service: "service", Node: "node"}[e.Kind]
	err := Unknown(what, e.Name, name, names, "write NAMESPACE/NAME, node/NAME or an address")
	if e.Kind == "" || e.Kind == Pod {
		return &UnknownPodError{name, err}
	}
	return err
}

// UnknownPodError says that nothing known has a name, which may be that of a pod.
type UnknownPodError struct {
	Pod model.Name
	error
}

// Finished is what is said of a pod that has.
func Finished(pod model.Name) error {
	return fmt.Errorf("pod %v has finished: it has no network any more", pod)
}

// Unknown says that no object of that kind has the name, which was asked for in these words. Of the
// names that there are it offers those most like it; if none is, it says what else to do.
func Unknown(kind, asked string, name model.Name, names []string, otherwise string) error {
	if near := nearest(names, name); len(near) > 0 {
		return fmt.Errorf("there is no %s %s: did you mean %s?", kind, asked, strings.Join(near, ", "))
	}
	return fmt.Errorf("there is no %s %s: %s", kind, asked, otherwise)
}

// nearest returns the names most like the one that was asked for: by their last part, then as a
// whole.
func nearest(names []string, asked model.Name) []string {
	type scored struct {
		name  string
		score int
	}
	// Kubernetes' names have no capitals.
	namespace, short := strings.ToLower(asked.Namespace), strings.ToLower(asked.Name)
	var found []scored
	for _, n := range names {
		last := n[strings.LastIndexByte(n, '/')+1:]
		d := distance(last, short)
		if strings.HasPrefix(last, short) {
			d = 1 // a pod of the Deployment or StatefulSet
		}
		if d > max(2, len(short)/3) {
			continue
		}
		score := 2 * d
		if !strings.Contains("/"+n, "/"+namespace+"/") {
			score++
		}
		found = append(found, scored{n, score})
	}
	slices.SortStableFunc(found, func(a, b scored) int {
		return cmp.Or(cmp.Compare(a.score, b.score), cmp.Compare(a.name, b.name))
	})
	var near []string
	for _, f := range found[:min(len(found), maxNearest)] {
		near = append(near, f.name)
	}
	return near
}

// distance is the number of letters to insert, delete or replace to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
