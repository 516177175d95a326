package config

import (
	"encoding/json"
	"maps"
	"net/http"
	"regexp"
	"strings"
	"sync"
)

// schema is a piece of an OpenAPI document.
type schema = map[string]any

// openAPI describes the API (OpenAPI 3.0), from the tables that read and print objects.
var openAPI = sync.OnceValue(func() []byte {
	text, _ := json.MarshalIndent(schema{ // strings, lists and maps: nothing that can fail
		"openapi":  "3.0.3",
		"info":     schema{"title": "Sluice balancer", "version": "1", "description": "nftlb's API. All changes are all or nothing."},
		"security": []any{schema{"key": []string{}}},
		"paths":    paths(),
		"components": schema{
			"securitySchemes": schema{"key": schema{"type": "apiKey", "in": "header", "name": "Key"}},
			"schemas":         schemas(),
		},
	}, "", "  ")
	return text
})

func schemas() schema {
	text := schema{"type": "string", "maxLength": mostName}
	names := listOf(closed(schema{"name": text}, "name"))
	f, a, p := maps.Clone(farmTable.properties), maps.Clone(addressTable.properties), maps.Clone(policyTable.properties)
	f["addresses"] = listOf(reference("address"))
	f["backends"] = listOf(reference("backend"))
	f["policies"] = names
	f["sessions"] = listOf(reference("session"))
	a["policies"] = names
	p["elements"] = listOf(reference("element"))
	return schema{
		"farm": closed(f, "name"), "backend": closed(backendTable.properties, "name"),
		"address": closed(a, "name"), "policy": closed(p, "name"),
		"session": closed(schema{"client": text, "backend": text, "expiration": text}, "client"),
		"element": closed(schema{"data": text, "counter-packets": text, "counter-bytes": text}, "data"),
		"document": closed(schema{
			"farms": listOf(reference("farm")), "addresses": listOf(reference("address")), "policies": listOf(reference("policy")),
		}),
		"sessions": closed(schema{"sessions": listOf(reference("session"))}),
		"response": closed(schema{"response": schema{"type": "string"}}, "response"),
	}
}

func (a *attribute[T]) schema() schema {
	s := schema{"type": "string"}
	switch {
	case a.object != nil:
		s = closed(a.properties)
	case a.list != nil:
		s = listOf(schema{"type": "string"})
	case a.values != nil:
		s["enum"] = a.values
	case a.pattern != "":
		s["pattern"] = a.pattern
	}
	if a.about != "" {
		s["description"] = a.about
	}
	return s
}

func closed(properties schema, required ...string) schema {
	s := schema{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

func listOf(items schema) schema      { return schema{"type": "array", "items": items} }
func reference(name string) schema    { return schema{"$ref": "#/components/schemas/" + name} }
func holds(name, about string) schema { return schema{"description": about, "content": content(name)} }
func content(name string) schema {
	return schema{"application/json": schema{"schema": reference(name)}}
}

// answers are what a request may be answered with.
func answers(good string) schema {
	said := func(about string) schema { return holds("response", about) }
	return schema{
		"200": holds(good, "success"), "400": said("a field that is named is at fault"), "401": schema{"description": "the key is wrong"},
		"404": said("an object is unknown"), "409": said("it collides with another object, or the kernel refuses it"),
		"413": said("the body is too large"), "503": said("it can't be done now"),
	}
}

func (r *route) operation() schema {
	answer := "response"
	switch {
	case strings.HasSuffix(r.path, "/sessions") && r.get != nil:
		answer = "sessions"
	case r.get != nil:
		answer = "document"
	}
	o := schema{"summary": r.about, "responses": answers(answer)}
	if r.method != http.MethodGet && (r.method != http.MethodDelete || strings.Count(r.path, "/") == 1) {
		o["requestBody"] = schema{"content": content("document")}
	}
	var all []any
	for _, name := range parameter.FindAllStringSubmatch(r.path, -1) {
		all = append(all, schema{"name": name[1], "in": "path", "required": true, "schema": schema{"type": "string", "minLength": 1}})
	}
	if all != nil {
		o["parameters"] = all
	}
	return o
}

// parameter is a name in a path.
var parameter = regexp.MustCompile(`\{(\w+)(\.\.\.)?\}`)

func paths() schema {
	all := schema{"/openapi.json": schema{"get": schema{
		"summary": "this description", "security": []any{}, "responses": schema{"200": schema{"description": "success"}},
	}}}
	for i := range routes {
		r := &routes[i]
		if r.about == "" {
			continue
		}
		path := parameter.ReplaceAllString(r.path, "{$1}")
		if all[path] == nil {
			all[path] = schema{}
		}
		all[path].(schema)[strings.ToLower(r.method)] = r.operation()
	}
	return all
}
