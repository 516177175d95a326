package health

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestValidate(t *testing.T) {
	long := strings.Repeat("x", maxText+1)
	for _, test := range []struct {
		Check
		want string // empty: valid
	}{
		{Check{Type: TCP}, ""},
		{Check{Type: TCP, Send: "a", Expect: "b", Port: 80}, ""},
		{Check{Type: UDP, Expect: "b"}, ""},
		{Check{Type: ICMP}, ""},
		{Check{Type: HTTP, Host: "shop.example", Path: "/a?b", Method: "HEAD", StatusFirst: 200, StatusLast: 204}, ""},
		{Check{Type: HTTPS, Host: "[2001:db8::1]:443", Insecure: true, Body: "ok"}, ""},
		{Check{Type: GRPC, Service: "shop", Host: "shop"}, ""},
		{Check{Type: Command, Command: []string{"true"}, Port: 1}, ""},
		{Check{Type: TCP, Interval: time.Second}, ""}, // the time-out's default is not longer

		{Check{}, `type "": must be`},
		{Check{Type: "TCP"}, `type "TCP": must be`},
		{Check{Type: TCP, Interval: time.Millisecond}, "interval 1ms: must be from 10ms"},
		{Check{Type: TCP, Interval: -time.Second}, "interval -1s: must be from 10ms"},
		{Check{Type: TCP, Interval: 25 * time.Hour}, "interval 25h0m0s: must be from"},
		{Check{Type: TCP, Timeout: -1}, "timeout -1ns: must be 10ms at least"},
		{Check{Type: TCP, Timeout: 6 * time.Second}, "timeout 6s: must not be longer than the interval, which is 5s"},
		{Check{Type: TCP, Rise: -1}, "rise -1: must be 1 at least"},
		{Check{Type: TCP, Fall: -1}, "fall -1: must be 1 at least"},
		{Check{Type: TCP, Path: "/"}, "path: a check of type tcp has no such field"},
		{Check{Type: TCP, Path: "/", Insecure: true}, "insecure: a check of type tcp has no such field"},
		{Check{Type: ICMP, Port: 1}, "port: a check of type icmp has no such field"},
		{Check{Type: HTTP, Insecure: true}, "insecure: a check of type http has no such field"},
		{Check{Type: HTTP, Path: "a"}, `path "a": must begin with a slash`},
		{Check{Type: HTTP, Path: "//other/a"}, ""},
		{Check{Type: HTTP, Path: "http://other/"}, "must begin with a slash"},
		{Check{Type: HTTP, Path: "/a b"}, `path "/a b": must`},
		{Check{Type: HTTP, Path: "/\r\nX: y"}, "path "},
		{Check{Type: HTTP, Method: "GET /"}, "method "},
		{Check{Type: HTTP, Host: "a b"}, `host "a b": must`},
		{Check{Type: HTTP, Host: "a/b"}, `host "a/b": must`},
		{Check{Type: HTTP, Host: "user@a"}, `host "user@a": must`},
		{Check{Type: HTTP, StatusFirst: 99}, "status 99-99: must be a range within 200-599"},
		{Check{Type: HTTP, StatusFirst: 300, StatusLast: 299}, "status 300-299: must"},
		{Check{Type: HTTP, StatusLast: 299}, "status 0-299: must"},
		{Check{Type: TCP, Send: long}, "send: 4097 bytes, must be 4096 at most"},
		{Check{Type: Command}, "command: must name a program"},
		{Check{Type: Command, Command: []string{""}}, "command: must name a program"},
		{Check{Type: Command, Command: []string{"a", "b\x00c"}}, "contains a NUL byte"},
	} {
		err := test.Validate()
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%+v: %v", test.Check, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%+v: got %v, want %s", test.Check, err, test.want)
		}
	}
}

// What is valid can be sent.
func FuzzValidate(f *testing.F) {
	f.Add("shop.example:80", "/a?b=c", "GET", "body")
	f.Add("[::1%25eth0]:80", "//x/%zz", "get", "\x00")
	f.Add("ä", "/ä", "", "")
	f.Fuzz(func(t *testing.T, host, path, method, body string) {
		c := Check{Type: HTTP, Host: host, Path: path, Method: method, Body: body}
		if c.Validate() != nil {
			return
		}
		p := &probe{Check: c.WithDefaults(), at: netip.MustParseAddrPort("192.0.2.1:80")}
		if _, err := p.request(); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	})
}
