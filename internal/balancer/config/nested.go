package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice.dev/sluice/internal/balancer/health"
)

func itoa(n int) string { return strconv.Itoa(n) }

// nested is an attribute whose value is an object of further attributes, and which is gone with
// {"type": "none"} or its like: clear reports that.
func nested[T, V any](name, about string, table *object[*V], fresh func() V, field func(T) **V, check func(*V) (clear bool, err error)) attribute[T] {
	return attribute[T]{
		name: name, about: about,
		within: &table.Kind, properties: table.properties,
		shown: func(t T) bool { return *field(t) != nil },
		fields: func(p *printer, t T) {
			for _, a := range table.attributes {
				if v := *field(t); a.shown == nil || a.shown(v) {
					a.write(p, v)
				}
			}
		},
		object: func(t T, given map[string]any) error {
			v := fresh()
			for key := range given {
				if _, ok := table.Nftlb[key]; !ok {
					return fmt.Errorf("%.60q is no key of it; there are %s", key, strings.Join(table.Keys, ", "))
				}
			}
			for i := range table.attributes {
				a := &table.attributes[i]
				if value, ok := given[a.name]; ok {
					if err := readValue(a, &v, value); err != nil {
						return fmt.Errorf("%s: %w", a.name, err)
					}
				}
			}
			clear, err := check(&v)
			if err != nil {
				return err
			}
			if *field(t) = &v; clear {
				*field(t) = nil
			}
			return nil
		},
	}
}

var checkTable = newObject("type", nil, nil,
	oneOf("type", append([]string{"none"}, health.Types()...), func(c *health.Check) *string { return &c.Type }),
	seconds("interval", 0.1, 86400, func(c *health.Check) *time.Duration { return &c.Interval }),
	seconds("timeout", 0.01, 3600, func(c *health.Check) *time.Duration { return &c.Timeout }),
	number("rise", 1, 1000, func(c *health.Check) *int { return &c.Rise }).saying(""),
	number("fall", 1, 1000, func(c *health.Check) *int { return &c.Fall }).saying(""),
	attribute[*health.Check]{
		name: "port", pattern: patternNumber, about: "port that is checked in place of the backend's",
		print: func(c *health.Check) string { return itoa(int(c.Port)) },
		shown: func(c *health.Check) bool { return c.Port != 0 },
		read: func(c *health.Check, text string) error {
			n, err := readNumber(text, 1, 65535)
			c.Port = uint16(n)
			return err
		},
	},
	free("host", func(c *health.Check) *string { return &c.Host }),
	free("path", func(c *health.Check) *string { return &c.Path }),
	free("method", func(c *health.Check) *string { return &c.Method }),
	attribute[*health.Check]{
		name: "status", pattern: `^[0-9]{3}(-[0-9]{3})?$`, about: "status of good answers: one, or a range such as 200-399",
		print: func(c *health.Check) string { return itoa(c.StatusFirst) + "-" + itoa(c.StatusLast) },
		shown: func(c *health.Check) bool { return c.StatusFirst != 0 },
		read: func(c *health.Check, text string) error {
			from, to, ranged := strings.Cut(text, "-")
			if !ranged {
				to = from
			}
			first, err1 := readNumber(from, 100, 599)
			last, err2 := readNumber(to, first, 599)
			c.StatusFirst, c.StatusLast = int(first), int(last)
			return errors.Join(err1, err2)
		},
	},
	free("body", func(c *health.Check) *string { return &c.Body }),
	toggle("insecure", func(c *health.Check) *bool { return &c.Insecure }).when(func(c *health.Check) bool { return c.Insecure }),
	free("service", func(c *health.Check) *string { return &c.Service }),
	free("send", func(c *health.Check) *string { return &c.Send }),
	free("expect", func(c *health.Check) *string { return &c.Expect }),
	attribute[*health.Check]{
		name: "command", about: "program with its arguments: a list of strings, or one string with spaces between them",
		list:  func(c *health.Check) *[]string { return &c.Command },
		shown: func(c *health.Check) bool { return len(c.Command) > 0 },
		read:  func(c *health.Check, text string) error { c.Command = strings.Fields(text); return nil },
	},
)

func checkAttribute() attribute[*farmFields] {
	fresh := func() health.Check { return health.Check{} } // Validate and WithDefaults know the rest
	return nested("health-check", "how backends are checked", checkTable, fresh,
		func(f *farmFields) **health.Check { return &f.check },
		func(c *health.Check) (bool, error) {
			if c.Type == "none" {
				return true, nil
			}
			if err := c.Validate(); err != nil {
				return false, err
			}
			*c = c.WithDefaults()
			return false, nil
		})
}

var feedTable = newObject("file", nil, nil,
	free("file", func(f *feed) *string { return &f.file }),
	free("url", func(f *feed) *string { return &f.url }),
	seconds("interval", 1, 30*86400, func(f *feed) *time.Duration { return &f.interval }),
)

func feedAttribute() attribute[*policyFields] {
	return nested("feed", "file or URL that the elements are read from, again and again", feedTable,
		func() feed { return feed{interval: time.Minute} },
		func(p *policyFields) **feed { return &p.feed },
		func(f *feed) (bool, error) {
			switch {
			case f.file != "" && f.url != "":
				return false, errors.New("file and url can't both be given")
			case f.url != "" && !strings.HasPrefix(f.url, "http://") && !strings.HasPrefix(f.url, "https://"):
				return false, fmt.Errorf("url: %.60q begins neither with http:// nor with https://", f.url)
			case f.file != "" && !strings.HasPrefix(f.file, "/"):
				return false, fmt.Errorf("file: %.60q is no absolute path", f.file)
			}
			return f.file == "" && f.url == "", nil
		})
}

func oneOf[V any](name string, values []string, field func(*V) *string) attribute[*V] {
	return attribute[*V]{
		name: name, values: values, print: func(v *V) string { return *field(v) },
		read: func(v *V, text string) error {
			if !slices.Contains(values, text) {
				return fmt.Errorf("unknown value %.60q; known are %s", text, strings.Join(values, ", "))
			}
			*field(v) = text
			return nil
		},
	}
}

func free[V any](name string, field func(*V) *string) attribute[*V] {
	return attribute[*V]{
		name: name, print: func(v *V) string { return *field(v) },
		shown: func(v *V) bool { return *field(v) != "" },
		read:  func(v *V, text string) error { *field(v) = text; return nil },
	}
}

// seconds is a time in seconds, which may have a fraction, or as 1500ms and 2m.
func seconds[V any](name string, least, most float64, field func(*V) *time.Duration) attribute[*V] {
	return attribute[*V]{
		name: name, about: fmt.Sprintf("seconds, from %v to %v", least, most),
		print: func(v *V) string { return strconv.FormatFloat(field(v).Seconds(), 'f', -1, 64) },
		read: func(v *V, text string) error {
			n, err := strconv.ParseFloat(text, 64)
			if d, other := time.ParseDuration(cmp.Or(text, "x")); other == nil && err != nil {
				n, err = d.Seconds(), nil
			}
			if err != nil || !(n >= least && n <= most) {
				return fmt.Errorf("%.60q is no number of seconds from %v to %v", text, least, most)
			}
			*field(v) = time.Duration(n * float64(time.Second)).Round(time.Millisecond)
			return nil
		},
	}
}
