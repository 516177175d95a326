package calico

import (
	"math"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
)

type tierSpec struct {
	Order         *float64 `json:"order"`
	DefaultAction string   `json:"defaultAction"`
}

// tier translates a Tier. Those that are always there can be declared, but
// not changed. It returns nil for one at fault that no policy can name.
func tier(data []byte, f *fault.List) *model.Tier {
	m, text := head(data, f)
	if strings.Contains(m.Name, ".") {
		f.Reject("metadata.name", "%q: the name of a tier can't have dots", m.Name)
	}
	builtin := model.BuiltInTier(m.Name)
	var spec tierSpec
	body(text, &spec, f)
	t := &model.Tier{Name: m.Name, Order: orderOf(spec.Order)}
	switch spec.DefaultAction {
	case "Pass":
		t.DefaultPass = true
	case "Deny":
	case "":
		t.DefaultPass = builtin != nil && builtin.DefaultPass
	default:
		f.Reject("spec.defaultAction", "%q is neither Deny nor Pass", spec.DefaultAction)
	}
	switch {
	case f.Broken() && len(validation.IsDNS1123Label(m.Name)) > 0:
		return nil
	case builtin == nil:
		return t
	}
	if t.Order != builtin.Order {
		f.Reject("spec.order", "the order of tier %s is %.0f and can't be another", m.Name, builtin.Order)
	}
	if t.DefaultPass != builtin.DefaultPass {
		f.Reject("spec.defaultAction", "that of tier %s can't be changed", m.Name)
	}
	return t
}

// orderOf resolves an order; without one an object comes last.
func orderOf(order *float64) float64 { return ptr.Deref(order, math.Inf(1)) }
