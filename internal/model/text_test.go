package model

import (
	"encoding/json"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"shop/web":                   "shop/web",
		`a "b" \c 'd'`:               `a "b" \c 'd'`,
		"Straße 日本 ☃":                "Straße 日本 ☃",
		"\x1b[31mred\x1b[0m\a":       `\x1b[31mred\x1b[0m\a`,
		"a\nPROBLEM: b\tc\r":         `a\nPROBLEM: b\tc\r`,
		"\u009b2J \u0085 \x7f":       `\u009b2J \u0085 \x7f`,
		"abc\u202ecba \u2066 \u200f": `abc\u202ecba \u2066 \u200f`,
		"\u2028\u2029\ufeff\u200b":   `\u2028\u2029\ufeff\u200b`,
		"\xff\xc3 \xe2\x82 é":        `\xff\xc3 \xe2\x82 é`,
		"\U000e0001":                 `\U000e0001`,
		"":                           "",
	} {
		if got := Printable(text); got != want {
			t.Errorf("%q is printed as %s, want %s", text, got, want)
		}
	}
	if got := PrintableLines("a\x1b\n\tb\n\nc"); got != "a\\x1b\n\\tb\n\nc" {
		t.Errorf("lines are printed as %q", got)
	}
}

func FuzzPrintable(f *testing.F) {
	f.Add("a\x1b\xff\u202e\ufffd")
	f.Fuzz(func(t *testing.T, text string) {
		got := Printable(text)
		if !utf8.ValidString(got) || Printable(got) != got {
			t.Errorf("%q is printed as %q", text, got)
		}
		for _, r := range got {
			if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
				t.Errorf("%q is printed with %q", text, r)
			}
		}
	})
}

// TestRefText shows that what a Ref says in JSON is what it says, and is read back as that.
func TestRefText(t *testing.T) {
	for _, c := range []struct {
		ref  Ref
		text string
	}{
		{Ref{ServiceKind, Name{"shop", "web"}}, "Service shop/web"},
		{Ref{NodeKind, Name{"", "worker-1"}}, "Node worker-1"},
		{Ref{Kind: "kubeconfig"}, "kubeconfig"},
		{Ref{Kind: "shop/web.yaml"}, "shop/web.yaml"},
	} {
		var back Ref
		text, err := c.ref.MarshalText()
		if err != nil || string(text) != c.text || back.UnmarshalText(text) != nil || back != c.ref {
			t.Errorf("%+v is %q, and back %+v", c.ref, text, back)
		}
	}
	for ref, text := range map[Ref]string{
		{ServiceKind, Name{"shop", "web"}}:                                               `{"kind":"Service","namespace":"shop","name":"web"}`,
		{Unread("metallb.io/v1beta1", "AddressPool"), Name{"metallb-system", "outside"}}: `{"apiVersion":"metallb.io/v1beta1","kind":"AddressPool","namespace":"metallb-system","name":"outside"}`,
		{Unread("v1", "ConfigMap"), Name{"metallb-system", "config"}}:                    `{"apiVersion":"v1","kind":"ConfigMap","namespace":"metallb-system","name":"config"}`,
		{Kind: "API discovery"}:                                                          `{"kind":"API discovery"}`,
	} {
		var back Ref
		got, err := json.Marshal(ref)
		if err != nil || string(got) != text || json.Unmarshal(got, &back) != nil || back != ref {
			t.Errorf("%v is %s, and back %+v, %v", ref, got, back, err)
		}
	}
	for _, text := range []string{"API discovery", "my folder/web.yaml", "a /b/c", "networking.k8s.io/v1beta1 NetworkPolicy db"} {
		var r Ref
		if err := r.UnmarshalText([]byte(text)); err != nil || r.String() != text {
			t.Errorf("%q, %v: want %q", r, err, text)
		}
	}
}
