package main

import (
	"fmt"
	"net"
	"testing"
	"time"

	"sluice.dev/sluice/test/netns"
	"sluice.dev/sluice/test/world"
)

// attachPods makes n pods, from 10.1.0.1 on, and attaches them to the node as a routing CNI does.
func attachPods(t *testing.T, node *netns.NS, n int) []*netns.NS {
	t.Helper()
	if err := node.Sysctl("net.ipv4.ip_forward", "1"); err != nil {
		t.Fatal(err)
	}
	var pods []*netns.NS
	for i := range n {
		pod := world.NewHost(t, fmt.Sprint("pod", i))
		ip, device := fmt.Sprintf("10.1.0.%d", i+1), fmt.Sprint("veth", i)
		err := netns.Veth(node, device, pod.NS, "eth0")
		if err == nil {
			_, err = node.Run("ip", "route", "add", ip, "dev", device)
		}
		if err != nil {
			t.Fatal(err)
		}
		gateway, err := node.LinkByName(device)
		if err != nil {
			t.Fatal(err)
		}
		pod.Address("eth0", ip+"/32")
		pod.IP("route add 169.254.1.1 dev eth0", "route add default via 169.254.1.1 dev eth0",
			"neigh add 169.254.1.1 dev eth0 lladdr "+gateway.Attrs().HardwareAddr.String()+" nud permanent")
		pods = append(pods, pod.NS)
	}
	return pods
}

// connect tries to connect from a pod.
func connect(pod *netns.NS, address string) error {
	return pod.Do(func() error {
		c, err := net.DialTimeout("tcp", address, 2*time.Second)
		if err != nil {
			return err
		}
		return c.Close()
	})
}
