package list

import (
	"fmt"

	"sluice.dev/sluice/internal/model"
)

// span adds the addresses of a range, both ends included.
func (p *parser) span(text, from, to string) error {
	first, err := model.ParseAddr(from)
	last, err2 := model.ParseAddr(to)
	switch {
	case err != nil || err2 != nil:
		return fmt.Errorf("%.90q is no range such as 192.0.2.1-192.0.2.9", text)
	case first.Is4() != last.Is4():
		return fmt.Errorf("the range %.90q has ends of two families", text)
	case last.Less(first):
		return fmt.Errorf("the range %.90q ends before it begins", text)
	}
	for prefix := range (model.AddressRange{First: first, Last: last}).Prefixes() {
		p.add(prefix)
	}
	return nil
}
