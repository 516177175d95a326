package ipvs

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/state"
)

// read returns our virtual servers, and where others have some.
func (c *conn) read() (have map[state.FrontendKey]*server, others map[state.FrontendKey]bool, err error) {
	have, others = map[state.FrontendKey]*server{}, map[state.FrontendKey]bool{}
	all, err := c.services()
	for _, f := range all {
		if !c.owns(f) {
			others[f.key] = true // one for marked packets has no key, nor has any frontend none
			continue
		}
		if err == nil {
			err = c.destinations(f)
		}
		have[f.key] = &f.server
	}
	return have, others, err
}

// lacks reports whether virtual servers that we have made are gone. IPVS tells nobody of changes:
// one of each family, another one each time where keys come in another order, stands for all.
func (c *conn) lacks(keys iter.Seq[state.FrontendKey]) (bool, error) {
	asked := map[bool]bool{}
	for k := range keys {
		if asked[k.Addr.Is4()] {
			continue
		}
		if has, err := c.has(k); !has || err != nil {
			return !has && err == nil, err
		}
		if asked[k.Addr.Is4()] = true; len(asked) == 2 {
			break
		}
	}
	return false, nil
}

// begin carries out changes, and returns of which virtual servers the kernel has refused something,
// and why. Virtual servers are first: nothing is added to one of another program's.
func (c *conn) begin(ops []op) (map[state.FrontendKey]string, error) {
	refused := map[state.FrontendKey]string{}
	for _, servers := range []bool{true, false} {
		var some []op
		for _, o := range ops {
			if o.dest.IsValid() != servers && refused[o.key] == "" {
				some = append(some, o)
			}
		}
		failed, err := c.do(some)
		for _, i := range slices.Sorted(maps.Keys(failed)) {
			if o := some[i]; refused[o.key] == "" {
				refused[o.key] = reason(o, failed[i])
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return refused, nil
}

// settle carries out what follows, and removes those virtual servers of ours of which something was
// refused.
func (c *conn) settle(ops []op, refused map[state.FrontendKey]string) error {
	ops = slices.DeleteFunc(ops, func(o op) bool { return refused[o.key] != "" })
	for k, why := range refused {
		if why != foreign {
			ops = append(ops, op{cmd: cmdDelService, key: k})
		}
	}
	return c.all(ops)
}

// all carries out changes, all of which the kernel has to take.
func (c *conn) all(ops []op) error {
	failed, err := c.do(ops)
	for i, refused := range failed {
		err = errors.Join(err, fmt.Errorf("%s: %w", ops[i], refused))
	}
	return err
}

const foreign = "another program has a virtual server of IPVS there"

// reason is why IPVS refused something, for people.
func reason(o op, err error) string {
	switch {
	case o.cmd == cmdNewService && errors.Is(err, unix.EEXIST):
		return foreign
	case o.method.scheduler != "" && errors.Is(err, unix.ENOENT):
		return fmt.Sprintf("the kernel has no scheduler %s: 'modprobe ip_vs_%s' loads it", o.method.scheduler, o.method.scheduler)
	}
	return fmt.Sprintf("IPVS refuses to %s: %v", o, err)
}

// remove removes those of our virtual servers that may go, and returns how many are left.
func (c *conn) remove(may func(*found) (bool, error)) (left int, err error) {
	servers, err := c.services()
	if err != nil {
		return 0, err
	}
	var ops []op
	for _, f := range servers {
		if !c.owns(f) {
			continue
		}
		if goes, err := may(f); err != nil {
			return 0, err
		} else if !goes {
			left++
			continue
		}
		ops = append(ops, op{cmd: cmdDelService, key: f.key})
	}
	return left, c.all(ops)
}

// removeAll removes all our virtual servers.
func (c *conn) removeAll() error {
	_, err := c.remove(func(*found) (bool, error) { return true, nil })
	return err
}
