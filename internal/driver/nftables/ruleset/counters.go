package ruleset

import "sluice.dev/sluice/internal/model"

// What the names of counters begin with.
const (
	Allowed    = "allowed"
	Denied     = "denied"
	DropPrefix = "dropped/" // and the reason
)

// maxName is the longest name that the kernel takes.
const maxName = 200

// CounterName names the counter of what a policy allowed or denied, as nft can type it:
// "denied/NetworkPolicy/shop/db".
func CounterName(verdict string, key model.PolicyKey) string {
	name := verdict + "/" + string(key.Kind)
	for _, s := range []string{key.Name.Namespace, key.Name.Name} {
		if s != "" {
			name += "/" + s
		}
	}
	if len(name) > maxName {
		digest := digestName(name)
		name = name[:maxName-len(digest)-1] + "-" + digest
	}
	return name
}
