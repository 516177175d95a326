package manifest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source"
	"sluice.dev/sluice/internal/source/kinds"
	"sluice.dev/sluice/internal/source/kubeobj"
)

// object is one object that a file declares.
type object struct {
	model.Ref
	value     any    // its last good version; nil if there never was one
	sum       uint64 // of the text that it was read from
	line      int
	fault     string // what is wrong with the present version; empty if nothing is
	force     string // what is in force then; see model.Issue
	duplicate bool   // another one in the file has its name, and counts

	// declared is the name that the text gives it; set where that can be another
	// than the one it is known by, as Calico stores things.
	declared model.Name
}

// content is what one file declares.
type content struct {
	objects    []object
	skipped    map[string]int
	issues     []model.Issue // those of objects and of parts that hold no object
	joined     int           // documents that were joined without a line break between them
	incomplete bool          // there are parts of which no good version was ever read
	unreadable bool          // there are parts of which it can't be told what they declare
}

// parser reads files; one serves one goroutine.
type parser struct {
	decoder
	// Filled anew for each object, in the same room.
	service corev1.Service
	slice   discoveryv1.EndpointSlice
	seed    maphash.Seed
	// declared: files are read as users give them to an API; nil: as a cluster has them.
	declared *declared
	// ignoreRefused: see kinds.Text.
	ignoreRefused bool
	buf           []byte // for reading files

	// The file being read.
	name    string
	line    int    // that counted is on
	yaml    bool   // data was made from YAML: all of it counts as being on line
	counted int    // offset up to which the lines of data were counted
	text    []byte // that data was made from; nil for JSON
	place   string // " items[3]" in a list whose items do not have lines of their own
	twice   error  // a key that is given twice in the YAML that data was made from
	prev    previous
	out     content
}

// parse reads a file. prev is what it declared before: an object whose text is
// the same is taken from there, and so is the last good version of one that
// is at fault now. Where a part can't be read at all, all that prev has and
// the rest of the file doesn't declare stays.
func (p *parser) parse(name string, data []byte, prev []object) content {
	p.name, p.out = name, content{}
	p.prev = previous{objects: prev}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) // a byte order mark
	if isJSON(name) {
		p.line, p.yaml, p.text, p.twice = 1, false, nil, nil
		p.stream(data)
	} else {
		p.documents(data)
	}
	p.refuseDuplicates()
	if p.out.unreadable {
		p.keepUnseen()
	}
	out := p.out
	p.out, p.prev, p.data, p.text = content{}, previous{}, nil, nil
	return out
}

// isJSON tells whether a file is read as JSON; all others are YAML.
func isJSON(name string) bool { return strings.HasSuffix(name, ".json") }

// stream reads JSON values that follow each other.
func (p *parser) stream(data []byte) {
	p.scanner, p.counted, p.place = scanner{data: data}, 0, ""
	for !p.end() {
		if err := p.value("", ""); err != nil {
			p.unreadablePart(err)
			return
		}
	}
}

// unreadablePart records a part of the file that can't be read.
func (p *parser) unreadablePart(err error) {
	offset := p.pos
	if syntax, ok := errors.AsType[*syntaxError](err); ok {
		offset = syntax.offset
	}
	p.unreadableAt(p.lineAt(offset), err.Error())
}

func (p *parser) unreadableAt(line int, reason string) {
	p.out.unreadable = true
	force := model.InForceNothing
	if len(p.prev.objects) > 0 {
		force = model.InForceLast
	}
	p.out.issues = append(p.out.issues, model.Issue{Object: model.Ref{Kind: model.Kind(p.name)}, Source: p.source(line), Reason: reason, InForce: force})
}

// lineAt tells the line of an offset, which must not be before an earlier one's.
func (p *parser) lineAt(offset int) int {
	if !p.yaml && offset > p.counted {
		p.line += bytes.Count(p.data[p.counted:offset], []byte{'\n'})
		p.counted = offset
	}
	return p.line
}

func (p *parser) source(line int) string { return p.name + ":" + strconv.Itoa(line) + p.place }

// value reads an object, or a list of them. The names are those that a typed
// list implies. An error means that nothing behind it can be read.
func (p *parser) value(apiVersion, kind string) error {
	p.peek()
	start := p.pos
	given, named, err := p.header()
	if err == nil {
		if given != "" {
			apiVersion = given
		}
		if named != "" {
			kind = named
		}
		k := types()[typeOf{apiVersion, kind}]
		switch {
		case kind == "":
			err = &fieldError{field: "kind", reason: "is missing"}
		case k != nil:
			if p.declared != nil {
				p.declared.counts.Read++
			}
			return p.object(k)
		default:
			list := false
			if item, is := strings.CutSuffix(kind, "List"); is {
				list, err = p.items(apiVersion, item)
			}
			if !list {
				p.pos = start
				p.pass(apiVersion, kind, start)
				return p.skip()
			}
		}
	}
	if wrong, ok := err.(*fieldError); ok {
		reason := wrong.Error()
		if name := p.identify(start, true).Name; p.place != "" && name != "" {
			reason += " (its metadata.name is " + name + ")"
		}
		p.unreadableAt(p.lineAt(start), reason)
		return p.reskip(start)
	}
	return err
}

// reskip moves behind the value at an offset.
func (p *parser) reskip(start int) error {
	p.pos = start
	return p.skip()
}

var errFound = errors.New("found")

// header looks ahead for apiVersion and kind, which are first as a rule.
func (p *parser) header() (apiVersion, kind string, err error) {
	start := p.pos
	err = p.scanner.object(func(key []byte) error {
		to := &kind
		switch string(key) {
		case "apiVersion":
			to = &apiVersion
		case "kind":
		default:
			return p.skip()
		}
		b, err := p.decoder.text()
		if b != nil {
			*to = *p.names.intern(b)
		}
		if err == nil && apiVersion != "" && kind != "" {
			err = errFound
		}
		return err
	})
	if err == errFound {
		err = nil
	}
	if err == nil || isField(err) {
		p.pos = start
	}
	return apiVersion, kind, err
}

func isField(err error) bool { _, ok := err.(*fieldError); return ok }

// items reads the objects of a list, of kind those that do not say theirs. Found is whether it is
// a list: as for kubectl, what has items is one.
func (p *parser) items(apiVersion, kind string) (found bool, err error) {
	err = p.scanner.object(func(key []byte) error {
		if string(key) != "items" {
			return p.skip()
		}
		found = true
		lines := itemLines(p.text, p.line)
		p.text = nil // lists within are on the line of their item
		outer, last := p.place, p.lineAt(p.pos)
		return p.scanner.list(func(i int) error {
			p.peek()
			if i < len(lines) {
				p.line = lines[i]
			} else if line := p.lineAt(p.pos); line == last {
				p.place = outer + " items[" + strconv.Itoa(i) + "]"
			} else {
				last = line
			}
			if err := p.value(apiVersion, kind); err != nil {
				return err
			}
			p.place = outer
			return nil
		})
	})
	return found, err
}

// pass counts an object of a kind that isn't read, which begins at start.
func (p *parser) pass(apiVersion, kind string, start int) {
	if p.declared != nil && p.workload(kind, start) {
		p.declared.counts.Read++
		return
	}
	reason, hint := unread(apiVersion, kind)
	if p.configures(apiVersion, kind, start) {
		reason = insteadOf("IPAddressPools, L2Advertisements, BGPAdvertisements and BGPPeers of metallb.io")
	}
	if reason != "" && (!hint || p.declared != nil) {
		i := model.Issue{
			Object: model.Ref{Kind: model.Unread(apiVersion, kind), Name: p.given(start)},
			Source: p.source(p.lineAt(start)), Reason: reason, InForce: model.InForceNothing,
		}
		p.pos = start
		if hint {
			p.declared.hints = append(p.declared.hints, i)
		} else {
			p.out.issues = append(p.out.issues, i)
		}
	}
	if isOurs(kind) {
		kind = apiVersion + " " + kind
	}
	if p.declared != nil {
		if reason != "" {
			p.declared.counts.Unread++
		} else {
			p.declared.counts.Nothing[kind]++
		}
		return
	}
	if p.out.skipped == nil {
		p.out.skipped = make(map[string]int)
	}
	p.out.skipped[kind]++
}

// object reads an object of a known kind.
func (p *parser) object(k *kinds.Kind) error {
	start := p.pos
	if len(p.prev.objects) > 0 {
		if err := p.skip(); err != nil {
			return err
		}
		if o := p.prev.unchanged(k.Kind, p.sum(start)); o != nil {
			p.add(*o, start)
			return nil
		}
		p.pos = start
	}
	value, err := p.decode(k)
	if _, ok := err.(*syntaxError); ok {
		return err
	}
	if err != nil && isField(err) {
		if err := p.reskip(start); err != nil {
			return err
		}
	}
	o := object{sum: p.sum(start)}
	if value != nil {
		o.Ref, o.value = value.Ref(), value
	}
	if value == nil || !k.Typed {
		end := p.pos
		o.declared = p.identify(start, k.Namespaced)
		p.pos = end
	}
	if value == nil {
		o.Ref = model.Ref{Kind: k.Kind, Name: o.declared}
	}
	if o.declared == o.Name {
		o.declared = model.Name{}
	}
	if o.Name.Name == "" {
		p.unreadableAt(p.lineAt(start), fmt.Sprintf("%s: %v", k.Kind, err))
		return nil
	}
	if last := p.prev.find(o.Ref); last != nil {
		if o.value = source.Newest(last.value, o.value); o.value == last.value {
			o.Ref = last.Ref
		}
	}
	if err != nil {
		o.fault, o.force = source.Fault(o.value, value, err)
	}
	p.add(o, start)
	return nil
}

// sum is the checksum of the text from an offset to here.
func (p *parser) sum(start int) uint64 { return maphash.Bytes(p.seed, p.data[start:p.pos]) }

func (p *parser) add(o object, start int) {
	o.line = p.lineAt(start)
	if o.fault != "" {
		p.out.issues = append(p.out.issues, model.Issue{Object: o.Ref, Source: p.source(o.line), Reason: o.fault, InForce: o.force})
	}
	p.out.objects = append(p.out.objects, o)
}

// decode reads an object and translates it. Of the kinds that there are many objects of,
// no more than fields is read.
func (p *parser) decode(k *kinds.Kind) (model.Object, error) {
	switch k.Kind {
	case model.ServiceKind:
		p.service = corev1.Service{}
		err := decodeService(&p.decoder, &p.service)
		if p.declared != nil {
			p.declared.assign(&p.service)
		}
		return translate(err, &p.service.ObjectMeta, &p.service, kubeobj.Service)
	case model.EndpointSliceKind:
		p.slice = discoveryv1.EndpointSlice{Ports: p.slice.Ports, Endpoints: p.slice.Endpoints}
		return translate(decodeSlice(&p.decoder, &p.slice), &p.slice.ObjectMeta, &p.slice, kubeobj.EndpointSlice)
	case model.PodKind:
		var o corev1.Pod
		return translate(decodePod(&p.decoder, &o), &o.ObjectMeta, &o, kubeobj.Pod)
	case model.NodeKind:
		var o corev1.Node
		return translate(decodeNode(&p.decoder, &o), &o.ObjectMeta, &o, kubeobj.Node)
	case model.NamespaceKind:
		var o corev1.Namespace
		return translate(decodeNamespace(&p.decoder, &o), &o.ObjectMeta, &o, kubeobj.Namespace)
	case model.ServiceAccountKind:
		var o corev1.ServiceAccount
		return translate(decodeServiceAccount(&p.decoder, &o), &o.ObjectMeta, &o, kubeobj.ServiceAccount)
	}
	start := p.pos
	if err := p.skip(); err != nil {
		return nil, err
	}
	return k.Decode(kinds.Text{Data: p.data[start:p.pos], Also: p.twice, Namespace: kinds.DefaultNamespace, IgnoreRefused: p.ignoreRefused})
}

// translate applies one of kubeobj's functions to what a scanner has filled, if it could.
func translate[K, M any, P interface {
	*M
	model.Object
}](err error, meta *metav1.ObjectMeta, o *K, f func(*K) (P, error)) (model.Object, error) {
	if err != nil {
		return nil, err
	}
	meta.Namespace = cmp.Or(meta.Namespace, kinds.DefaultNamespace)
	m, err := f(o)
	if m == nil {
		return nil, err
	}
	return m, err
}

// identify tells the name of an object that can't be decoded as a whole.
func (p *parser) identify(start int, namespaced bool) model.Name {
	name := p.given(start)
	switch {
	case name.Name == "":
		return model.Name{}
	case !namespaced:
		return model.Name{Name: name.Name}
	}
	return model.Name{Namespace: cmp.Or(name.Namespace, kinds.DefaultNamespace), Name: name.Name}
}

// given tells the name and the namespace that the text gives an object.
func (p *parser) given(start int) model.Name {
	p.pos = start
	// An error is no matter: the object is known to have a wrong field, and
	// what was read up to it is all there is to know.
	var o corev1.Namespace
	_ = decodeName(&p.decoder, &o)
	return model.Name{Namespace: o.Namespace, Name: o.Name}
}

// refuseDuplicates lets the first of several objects of one name count.
func (p *parser) refuseDuplicates() {
	objects := p.out.objects
	if len(objects) < 2 {
		return
	}
	lines := make(map[model.Ref]int, len(objects))
	for i := range objects {
		o := &objects[i]
		line, duplicate := lines[o.Ref]
		if !duplicate {
			lines[o.Ref] = o.line
			continue
		}
		o.value, o.sum, o.duplicate = nil, 0, true
		o.fault = fmt.Sprintf("is declared twice in this file; the one on line %d counts, delete the other", line)
		p.out.issues = append(p.out.issues, model.Issue{Object: o.Ref, Source: p.source(o.line), Reason: o.fault})
	}
}

// keepUnseen keeps what the file declared before and is not seen now.
func (p *parser) keepUnseen() {
	seen := make(map[model.Ref]bool, len(p.out.objects))
	for i := range p.out.objects {
		seen[p.out.objects[i].Ref] = true
	}
	for _, o := range p.prev.objects {
		if !seen[o.Ref] {
			o.sum, o.fault, o.force = 0, "", ""
			p.out.objects = append(p.out.objects, o)
		}
	}
}
