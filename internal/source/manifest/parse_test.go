package manifest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/source/kubeobj"
)

// everything is one object of each kind with all the fields that matter, and
// some that don't.
var everything = map[string]string{
	"Service": `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","namespace":"shop","creationTimestamp":"2026-01-02T03:04:05Z",
 "labels":{"a":"b","service.kubernetes.io/headless":""},"managedFields":[{"x":[1,2.5e3,null,{"y":"\u00e9\"]}"}]}],
 "annotations":{"other":"{\"kind\":\"Pod\"}","service.beta.kubernetes.io/load-balancer-source-ranges":"10.0.0.0/8"}},
"spec":{"type":"LoadBalancer","clusterIP":"10.96.0.1","clusterIPs":["10.96.0.1","fd00::1"],"externalIPs":["192.0.2.1"],
 "ports":[{"name":"http","protocol":"TCP","port":80,"targetPort":"w\u0065b","nodePort":30080,"appProtocol":"http"},{"name":"dns","protocol":"UDP","port":53,"targetPort":5353}],
 "selector":{"app":"web","tier":"front"},"sessionAffinity":"ClientIP","sessionAffinityConfig":{"clientIP":{"timeoutSeconds":77}},
 "internalTrafficPolicy":"Local","externalTrafficPolicy":"Local","healthCheckNodePort":31000,"loadBalancerSourceRanges":["192.0.2.0/24"],
 "publishNotReadyAddresses":true,"trafficDistribution":"PreferClose","ipFamilies":["IPv4"],"allocateLoadBalancerNodePorts":null},
"status":{"conditions":[],"loadBalancer":{"ingress":[{"ip":"203.0.113.1","ipMode":"VIP"},{"ip":"203.0.113.2","ipMode":"Proxy"},{"hostname":"x"}]}}}`,
	"EndpointSlice": `{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{"name":"web-1","namespace":"shop","labels":{"kubernetes.io/service-name":"web"}},
"addressType":"IPv4","ports":[{"name":"http","protocol":"TCP","port":8080,"appProtocol":null},{"name":"any"},{"port":53,"protocol":"UDP"}],
"endpoints":[{"addresses":["10.1.0.1","10.1.0.2"],"conditions":{"ready":true,"serving":null,"terminating":false},"hostname":"h","nodeName":"n1","zone":"a","hints":{"forZones":[{"name":"a"},{"name":"b"}],"forNodes":[{"name":"n1"}]},"targetRef":{"kind":"Pod"}},
 {"addresses":["10.1.0.3"],"conditions":{"ready":false,"serving":true,"terminating":true},"nodeName":null},{"addresses":["10.1.0.4"],"hints":{"forZones":[{"name":"b"}]}},{"addresses":["10.1.0.5"],"deprecatedTopology":{"x":"y"}}]}`,
	"Pod": `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web-0","namespace":"shop","labels":{"app":"web"},"deletionTimestamp":"2026-01-02T03:04:05Z"},
"spec":{"nodeName":"n1","hostNetwork":true,"serviceAccountName":"seller","serviceAccount":"seller","containers":[{"name":"c","image":"i","env":[{"name":"X","value":"y"}],"ports":[{"name":"http","containerPort":8080,"protocol":"TCP"},{"containerPort":53,"protocol":"UDP"}]},{"name":"d"}],
 "initContainers":[{"name":"i","ports":[{"containerPort":1}]},{"name":"s","restartPolicy":"Always","ports":[{"name":"side","containerPort":9090}]}]},
"status":{"phase":"Running","podIP":"10.1.0.1","podIPs":[{"ip":"10.1.0.1"},{"ip":"fd00::5"}],"conditions":[{"type":"Initialized","status":"True"},{"type":"Ready","status":"True"}]}}`,
	"Node": `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1","labels":{"topology.kubernetes.io/zone":"a"}},
"spec":{"podCIDR":"10.1.0.0/24","podCIDRs":["10.1.0.0/24","fd00:1::/64"],"taints":[{"key":"k","effect":"NoSchedule"},{"key":"ToBeDeletedByClusterAutoscaler","value":"1"}]},
"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"},{"type":"Hostname","address":"n1"},{"type":"InternalIP","address":"2001:db8::1"}]}}`,
	"Namespace": `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"shop","labels":{"team":"x"}},"spec":{"finalizers":["kubernetes"]}}`,
}

// reference reads an object by reflection, as Kubernetes does.
func reference(t testing.TB, kind, text string) any {
	t.Helper()
	switch kind {
	case "Service":
		return translated(t, text, kubeobj.Service)
	case "EndpointSlice":
		return translated(t, text, kubeobj.EndpointSlice)
	case "Pod":
		return translated(t, text, kubeobj.Pod)
	case "Node":
		return translated(t, text, kubeobj.Node)
	}
	return translated(t, text, kubeobj.Namespace)
}

func translated[K, M any](t testing.TB, text string, f func(*K) (*M, error)) any {
	t.Helper()
	o := new(K)
	must(t, json.Unmarshal([]byte(text), o))
	m, err := f(o)
	must(t, err)
	return m
}

func TestDecodesAsKubernetesDoes(t *testing.T) {
	for kind, text := range everything {
		want := reference(t, kind, text)
		c := newParsers(false)[0].parse("x.json", []byte(text), nil)
		if len(c.objects) != 1 || len(c.issues) != 0 {
			t.Fatalf("%s: %d objects, issues %v", kind, len(c.objects), c.issues)
		}
		if !reflect.DeepEqual(c.objects[0].value, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", kind, c.objects[0].value, want)
		}
	}
}

// TestEveryValueOfTheWrongType puts a value of another type in the place of
// each value in turn: the object is at fault or as good as ever, others are
// not touched, and the field is named.
func TestEveryValueOfTheWrongType(t *testing.T) {
	good := `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"good"}}`
	named := 0
	for kind, text := range everything {
		for _, wrong := range []string{`"text"`, `17`, `-1.5`, `true`, `{"a":[1]}`, `[{"b":2}]`, `null`} {
			for i, swapped := range swaps(t, text, wrong) {
				c := newParsers(false)[0].parse("x.json", []byte(good+swapped+good), nil)
				if !json.Valid([]byte(swapped)) {
					t.Fatalf("bad test: %s", swapped)
				}
				if n := len(c.objects); n == 0 || c.objects[0].Name.Name != "good" || c.objects[n-1].Name.Name != "good" {
					t.Fatalf("%s, value %d as %s: the objects beside it are lost: %v\n%s", kind, i, wrong, c.issues, swapped)
				}
				for _, issue := range c.issues {
					if strings.Contains(issue.Reason, ": is ") && strings.Contains(issue.Reason, "should be") {
						named++
					}
				}
			}
		}
	}
	if named < 300 {
		t.Errorf("only %d fields of a wrong type were named", named)
	}
}

// swaps returns text with one of its values replaced, for each of them.
func swaps(t *testing.T, text, wrong string) []string {
	var tree any
	must(t, json.Unmarshal([]byte(text), &tree))
	var replacement any
	must(t, json.Unmarshal([]byte(wrong), &replacement))
	var out []string
	var visit func(v any, set func(any))
	visit = func(v any, set func(any)) {
		switch v := v.(type) {
		case map[string]any:
			for k, child := range v {
				if k != "kind" && k != "apiVersion" {
					visit(child, func(x any) { v[k] = x })
				}
			}
		case []any:
			for i, child := range v {
				visit(child, func(x any) { v[i] = x })
			}
		}
		if set == nil {
			return
		}
		set(replacement)
		data, err := json.Marshal(tree)
		must(t, err)
		out = append(out, string(data))
		set(v)
	}
	visit(tree, nil)
	return out
}

func names(c content) string {
	var list []string
	for i := range c.objects {
		state := ""
		if c.objects[i].value == nil {
			state = "!"
		}
		list = append(list, state+c.objects[i].Ref.String())
	}
	return strings.Join(list, ", ")
}

const node = `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n%d"}}`

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, file, text string
		want             string // names of the objects, "!" before those at fault
		issues           []string
	}{
		{name: "nothing", file: "a.json"},
		{name: "white space", file: "a.yaml", text: "\n \n# nothing\n---\n---\n# more\n"},
		{name: "values in a row", file: "a.json", text: fmt.Sprintf(node+"\n"+node, 1, 2), want: "Node n1, Node n2"},
		{name: "byte order mark", file: "a.json", text: "\xef\xbb\xbf" + fmt.Sprintf(node, 1), want: "Node n1"},
		{name: "list", file: "a.json", text: `{"apiVersion":"v1","kind":"List","metadata":{},"items":[` + fmt.Sprintf(node+","+node, 1, 2) + `]}`, want: "Node n1, Node n2"},
		{name: "list of lists", file: "a.json", text: `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"NodeList","items":[{"metadata":{"name":"x"}}]}]}`, want: "Node x"},
		{name: "typed lists", file: "a.yaml", text: `
apiVersion: v1
kind: NamespaceList
items:
- metadata: {name: one}
---
kind: ServiceList
apiVersion: v1
items:
- metadata: {name: web}
  spec: {clusterIP: None}
---
kind: PodList
apiVersion: v1
items:
- metadata: {name: p}
---
kind: EndpointSliceList
apiVersion: discovery.k8s.io/v1
items:
- metadata: {name: s}
  addressType: IPv4
`, want: "Namespace one, Service default/web, Pod default/p, EndpointSlice default/s"},
		{name: "items before kind", file: "a.json", text: `{"items":[{"metadata":{"name":"x"}}],"kind":"NodeList","apiVersion":"v1"}`, want: "Node x"},
		{name: "empty lists", file: "a.json", text: `{"apiVersion":"v1","kind":"List","items":null}{"apiVersion":"v1","kind":"List","items":[]}{"apiVersion":"v1","kind":"List"}`},
		{name: "cluster-wide objects have no namespace", file: "a.yaml", text: "apiVersion: v1\nkind: Node\nmetadata: {name: x, namespace: other}\n", want: "Node x"},
		{name: "marks of documents", file: "a.yaml", text: "%YAML 1.1\n--- # first\napiVersion: v1\nkind: Node\nmetadata: {name: x}\n...\n---\n{apiVersion: v1, kind: Node, metadata: {name: z}}\n---\n{\"apiVersion\": \"v1\", \"kind\": \"Node\", \"metadata\": {\"name\": \"j\"}}\n", want: "Node x, Node z, Node j"},
		{name: "carriage returns", file: "a.yaml", text: "apiVersion: v1\r\nkind: Node\r\nmetadata: {name: x}\r\n---\r\napiVersion: v1\r\nkind: Node\r\nmetadata: {name: z}\r\n", want: "Node x, Node z"},
		{name: "field names are case-sensitive", file: "a.json", text: `{"apiVersion":"v1","kind":"Node","metadata":{"name":"x","Name":"y"}}`, want: "Node x"},

		{name: "no kind", file: "a.json", text: `{"apiVersion":"v1"}` + fmt.Sprintf(node, 1), want: "Node n1", issues: []string{"a.json|a.json:1|kind: is missing"}},
		{name: "kind is a number", file: "a.json", text: "\n" + `{"apiVersion":"v1","kind":1}` + fmt.Sprintf(node, 1), want: "Node n1", issues: []string{"a.json|a.json:2|kind: is a number, should be a string"}},
		{name: "no object", file: "a.yaml", text: "- a\n---\njust text\n---\n7\n", issues: []string{"a.yaml|a.yaml:1|is a list", "a.yaml|a.yaml:3|is a string", "a.yaml|a.yaml:5|is a number"}},
		{name: "no name", file: "a.json", text: `{"apiVersion":"v1","kind":"Node"}`, issues: []string{"a.json|a.json:1|Node: metadata.name: is missing"}},
		{name: "name is a number", file: "a.yaml", text: "apiVersion: v1\nkind: Node\nmetadata: {name: 7}\n", issues: []string{"a.yaml|a.yaml:1|Node: metadata.name: is a number, should be a string"}},
		{name: "name behind the fault", file: "a.json", text: `{"apiVersion":"v1","kind":"Pod","spec":{"containers":[{},{"ports":[{"containerPort":"http"}]}]},"metadata":{"name":"p"}}`, want: "!Pod default/p",
			issues: []string{"Pod default/p|a.json:1|spec.containers[1].ports[0].containerPort: is a string, should be a whole number"}},
		{name: "number with a fraction", file: "a.json", text: `{"apiVersion":"v1","kind":"Service","metadata":{"name":"s"},"spec":{"clusterIP":"10.0.0.1","ports":[{"port":80.5}]}}`, want: "!Service default/s", issues: []string{"Service default/s|a.json:1|spec.ports[0].port: 80.5 is no whole number"}},
		{name: "number too large", file: "a.json", text: `{"apiVersion":"v1","kind":"Service","metadata":{"name":"s"},"spec":{"clusterIP":"10.0.0.1","ports":[{"port":99999999999}]}}`, want: "!Service default/s", issues: []string{"Service default/s|a.json:1|spec.ports[0].port: 99999999999 is no whole number"}},
		{name: "time", file: "a.json", text: `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n","creationTimestamp":"yesterday"}}`, want: "!Node n", issues: []string{`Node n|a.json:1|metadata.creationTimestamp: "yesterday" is no time`}},
		{name: "items are no list", file: "a.json", text: `{"apiVersion":"v1","kind":"List","items":{}}` + fmt.Sprintf(node, 1), want: "Node n1", issues: []string{"a.json|a.json:1|items: is an object, should be a list"}},
		{name: "one bad item", file: "a.json", text: "{\"apiVersion\":\"v1\",\"kind\":\"NodeList\",\"items\":[\n{\"metadata\":{\"name\":\"a\"}},\n{\"metadata\":{\"name\":\"b\",\"labels\":[]}},\n7,\n{\"metadata\":{\"name\":\"c\"}}]}", want: "Node a, !Node b, Node c",
			issues: []string{"Node b|a.json:3|metadata.labels: is a list, should be an object", "a.json|a.json:4|is a number, should be an object"}},
		{name: "cut off", file: "a.json", text: fmt.Sprintf(node, 1) + "\n" + `{"apiVersion":"v1","kind":"Node","metadata":{"na`, want: "Node n1", issues: []string{"a.json|a.json:2|the file ends in the middle of an object"}},
		{name: "comma too many", file: "a.json", text: "{\"apiVersion\":\"v1\",\n\"kind\":\"Node\",\n\"metadata\":{\"name\":\"x\",}}", issues: []string{"a.json|a.json:3|a field name in double quotes should be here"}},
		{name: "bad escape", file: "a.json", text: `{"apiVersion":"v1","kind":"Node","metadata":{"name":"\q"}}`, issues: []string{"a.json|a.json:1|the string holds an escape that JSON doesn't know"}},
		{name: "too deep", file: "a.json", text: `{"apiVersion":"v1","x":` + strings.Repeat("[", 100000), issues: []string{"a.json|a.json:1|values are nested too deep"}},
		{name: "lists too deep", file: "a.json", text: strings.Repeat(`{"apiVersion":"v1","kind":"List","items":[`, 1e6), issues: []string{"a.json|a.json:1" + strings.Repeat(" items[0]", maxDepth/2) + "|values are nested too deep"}},
		{name: "after lists too deep", file: "a.yaml", text: strings.Repeat(`{"apiVersion":"v1","kind":"List","items":[`, maxDepth) + strings.Repeat("]}", maxDepth) + "\n---\n" + fmt.Sprintf(`{"apiVersion":"v1","kind":"List","items":[`+node+`]}`, 1), want: "Node n1", issues: []string{"a.yaml|a.yaml:1|values are nested too deep"}},
		{name: "YAML in JSON", file: "a.json", text: "kind: Node", issues: []string{"a.json|a.json:1|no JSON value begins like this"}},
		{name: "tab in YAML", file: "a.yaml", text: "# first\nkind: Node\nmetadata:\n\tname: x\n", issues: []string{"a.yaml|a.yaml:4|found character that cannot start any token"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := newParsers(false)[0].parse(c.file, []byte(c.text), nil)
			if names(got) != c.want {
				t.Errorf("objects %q, want %q", names(got), c.want)
			}
			if len(got.issues) != len(c.issues) {
				t.Fatalf("issues %v, want %q", got.issues, c.issues)
			}
			for i, issue := range got.issues {
				if text := issue.Object.String() + "|" + issue.Source + "|" + issue.Reason; !strings.HasPrefix(text, c.issues[i]) {
					t.Errorf("issue %q, want %q", text, c.issues[i])
				}
			}
		})
	}
}

// Kubernetes' API took addresses with leading zeros once, and goes on to read what it stored, in
// decimal.
func TestLeadingZeros(t *testing.T) {
	const zeros = `
apiVersion: v1
kind: Node
metadata: {name: node1}
spec: {podCIDRs: [010.244.001.000/24]}
status: {addresses: [{type: InternalIP, address: 010.010.000.011}]}
---
apiVersion: v1
kind: Pod
metadata: {name: lead}
spec: {nodeName: node1, containers: [{name: c}]}
status: {podIPs: [{ip: 010.244.001.002}]}
---
apiVersion: v1
kind: Service
metadata: {name: lead}
spec:
  type: LoadBalancer
  clusterIP: 10.96.1.4
  clusterIPs: [10.96.1.4]
  externalIPs: [203.000.113.053]
  loadBalancerSourceRanges: [010.010.000.000/24]
  ports: [{port: 80, targetPort: 8080, nodePort: 31004}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.064}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: lead-1, labels: {kubernetes.io/service-name: lead}}
addressType: IPv4
endpoints: [{addresses: [010.244.001.002], nodeName: node1}]
ports: [{port: 8080}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: lead}
spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 010.244.001.000/24, except: [010.244.001.004/30]}}]}]}
---
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: lead}
spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Accept, to: [{networks: [010.244.001.000/24]}]}]}
`
	p := newParsers(false)[0]
	got, want := p.parse("a.yaml", []byte(zeros), nil), p.parse("a.yaml", regexp.MustCompile(`\b0+(\d)`).ReplaceAll([]byte(zeros), []byte("$1")), nil)
	if len(got.issues) > 0 || len(got.objects) != 6 {
		t.Errorf("%d objects, issues %v", len(got.objects), got.issues)
	}
	for i, o := range want.objects {
		if !reflect.DeepEqual(got.objects[i].value, o.value) {
			t.Errorf("%s: %+v, want %+v", o.Ref, got.objects[i].value, o.value)
		}
	}
}

// TestLongListKeepsWhatIsUnchanged rewrites a list with one object changed.
func TestLongListKeepsWhatIsUnchanged(t *testing.T) {
	list := func(label int) []byte {
		var b strings.Builder
		b.WriteString(`{"apiVersion":"v1","kind":"NodeList","items":[`)
		for i := range 50 {
			v := 0
			if i == 20 {
				v = label
			}
			fmt.Fprintf(&b, "{\"metadata\":{\"name\":\"n%d\",\"labels\":{\"v\":\"%d\"}}},\n", i, v)
		}
		return []byte(strings.TrimSuffix(b.String(), ",\n") + "]}")
	}
	p := newParsers(false)[0]
	first := p.parse("a.json", list(1), nil)
	second := p.parse("a.json", list(2), first.objects)
	for i := range second.objects {
		if same := first.objects[i].value == second.objects[i].value; same != (i != 20) {
			t.Errorf("object %d: taken over: %v", i, same)
		}
	}
	if l := second.objects[30].line; l != 31 {
		t.Errorf("object 30 is on line %d, want 31", l)
	}
	broken := slices.Concat(list(3)[:1500], []byte("}"))
	third := p.parse("a.json", broken, second.objects)
	if len(third.objects) != 50 || len(third.issues) != 1 {
		t.Errorf("broken list: %d objects, issues %v", len(third.objects), third.issues)
	}
}

func TestInternerStartsOver(t *testing.T) {
	var n interner
	a := n.intern([]byte("a"))
	if n.intern([]byte("a")) != a {
		t.Error("two copies of one string")
	}
	for i := range maxInterned + 1 {
		n.intern(fmt.Append(nil, i))
	}
	if len(n.seen) > maxInterned || *a != "a" {
		t.Errorf("%d strings are kept", len(n.seen))
	}
}

// After a file on which it failed, a parser goes on as it was.
func TestParserGoesOn(t *testing.T) {
	p := newParsers(true)[0]
	p.declared = &declared{} // without a map to count in
	if _, err := p.parseSafely("a.json", []byte(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"x"}}`), nil); err == nil {
		t.Error("the parser did not fail")
	}
	if !p.ignoreRefused || p.declared == nil {
		t.Errorf("ignores what is refused: %v", p.ignoreRefused)
	}
}
