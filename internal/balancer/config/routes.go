package config

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"strings"
)

// route is what can be asked for at a path, whose parts in braces are names.
type route struct {
	method, path string
	about        string // of the API's description; empty: it is not in there
	get          getter
	edit         editor
}

type (
	getter func(s *Source, ctx context.Context, name string) (*printer, error)
	editor func(r *revision, names []string, body []byte) error
)

var routes = slices.Concat(
	routesOf("farms", "error deleting farm. Unknown farm", func(r *revision) *draft[*farm] { return &r.farmEdits }, (*revision).removeFarm, (*Source).printFarms),
	routesOf("addresses", "error stopping address. Unknown address", func(r *revision) *draft[*address] { return &r.addrEdits }, (*revision).removeAddress, (*Source).printAddresses),
	routesOf("policies", "error stopping policy. Unknown policy", func(r *revision) *draft[*policy] { return &r.listEdits }, (*revision).removePolicy, (*Source).printPolicies),
	routesIn("/farms/{name}/backends", "delete all backends", "/{backend}", "delete one of backends", (*revision).deleteBackend),
	routesIn("/farms/{name}/addresses", "take all addresses from a farm", "/{address}", "delete one of addresses", (*revision).deleteFarmAddress),
	routesIn("/farms/{name}/policies", "take all policies from a farm", "/{policy}", "delete one of policies", (*revision).deleteFarmPolicy),
	routesIn("/farms/{name}/sessions", "delete all static sessions", "/{client}", "delete one of sessions", (*revision).deleteSession),
	routesIn("/policies/{name}/elements", "delete all elements", "/{element...}", "delete an element; it may have a slash", (*revision).deleteElement),
	[]route{
		{http.MethodGet, "/farms/{name}/sessions", "static and live sessions", (*Source).printSessions, nil},
		{http.MethodDelete, "/farms/{name}/backends/{backend}/sessions", "delete static and live sessions of a backend", nil, inside((*revision).deleteSessionsOf)},
		{http.MethodPatch, "/farms/{name}/policies", "replace the policies of a farm by those of the body", nil, replaceLists},
		{http.MethodPatch, "/policies/{name}", replacesElements, nil, replaceElements},
		{http.MethodPatch, "/policies/{name}/elements", replacesElements, nil, replaceElements},
		{http.MethodPatch, "/policies/{name}/{rest...}", "", nil, replaceElements},
		{http.MethodGet, "/policies/{name}/{rest...}", "", (*Source).printPolicies, nil},
		{http.MethodGet, "/addresses/{name}/{rest...}", "", (*Source).printAddresses, nil},
	},
)

const replacesElements = "replace the elements of a policy by those of the body"

// routesOf are those of a list of the document, and of one of its objects; unknown says that there
// is none of a name to be deleted.
func routesOf[O named[O]](list, unknown string, in func(*revision) *draft[O], remove func(*revision, string), get getter) []route {
	var none O
	all, one := "/"+list, "/"+list+"/{name}"
	put := func(c *revision, _ []string, body []byte) error { return merge(body, nil)(c) }
	return []route{
		{http.MethodGet, all, "all of them", get, nil},
		{http.MethodPost, all, "merge objects, of all three lists", nil, put},
		{http.MethodPut, all, "the same as post", nil, put},
		{http.MethodDelete, all, "delete all; with a body: merge it, but take elements from policies", nil, func(c *revision, _ []string, body []byte) error {
			if len(bytes.TrimSpace(body)) > 0 {
				return merge(body, func(r *reader) { r.dropElements = true })(c)
			}
			for name := range in(c).All() {
				remove(c, name)
			}
			return nil
		}},
		{http.MethodGet, one, "one of them", get, nil},
		{http.MethodDelete, one, "delete it", nil, func(c *revision, n []string, _ []byte) error {
			if in(c).Get(n[0]) == none {
				return &failure{404, unknown + " '" + n[0] + "'"}
			}
			remove(c, n[0])
			return nil
		}},
	}
}

// routesIn are those of a list in an object, and of one of its members.
func routesIn(path, all, name, one string, remove func(r *revision, object, member string) error) []route {
	return []route{{http.MethodDelete, path, all, nil, inside(remove)}, {http.MethodDelete, path + name, one, nil, inside(remove)}}
}

// inside edits what is inside an object: a member of it, or, without a name, all.
func inside(edit func(r *revision, object, member string) error) editor {
	return func(r *revision, names []string, _ []byte) error { return edit(r, names[0], names[1]) }
}

func replaceElements(c *revision, names []string, body []byte) error {
	if c.policies.Get(names[0]) == nil {
		return unknown("Unknown policy '%s'", names[0])
	}
	return merge(body, func(r *reader) { r.replaceElements = names[0] })(c)
}

func replaceLists(c *revision, names []string, body []byte) error {
	if c.farms.Get(names[0]) == nil {
		return unknown("Unknown farm '%s'", names[0])
	}
	return merge(body, func(r *reader) { r.replaceLists = names[0] })(c)
}

// find returns the route of a request, and the names in its path, which are empty beyond the last.
func find(method string, path []string) (*route, []string, error) {
	for i := range routes {
		if names, ok := match(routes[i].path, path); ok && routes[i].method == method {
			return &routes[i], append(names, "", ""), nil
		}
	}
	if method == http.MethodGet || method == http.MethodDelete && Document.List(path[0]) != nil {
		return nil, nil, errInvalid
	}
	return nil, nil, errNoPath
}

// match returns the names in a path, if it is one of a route. A name that ends with dots takes all
// that is left.
func match(of string, path []string) (names []string, ok bool) {
	parts := strings.Split(of[1:], "/")
	for i, part := range parts {
		switch {
		case i >= len(path):
			return nil, false
		case strings.HasSuffix(part, "...}"):
			return append(names, strings.Join(path[i:], "/")), true
		case part[0] == '{':
			names = append(names, path[i])
		case part != path[i]:
			return nil, false
		}
	}
	return names, len(path) == len(parts)
}
