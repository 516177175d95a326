package cni_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/test/programs"
	"sluice.dev/sluice/test/world"
)

// What one ADD takes, from the start of the program to its end, beside the reference plugin. CPU
// tells more on a busy machine.
func BenchmarkAdd(b *testing.B) {
	const ipam = `"ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.77.0.0/16"}], [{"subnet": "fd77::/64"}]]}`
	for _, plugin := range []string{"sluice-cni", "bridge"} {
		b.Run(plugin, func(b *testing.B) {
			node := host(b, "node")
			path := programs.Path(b, plugin)
			if _, err := os.Stat(path); err != nil {
				path = filepath.Join(debianPlugins, plugin)
			}
			more := map[string]string{"bridge": `"isGateway": true, `}[plugin]
			conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "pods", "type": %q, %s`+ipam+`}`, plugin, more, b.TempDir())
			call := func(verb string, pod *world.Host) (cpu time.Duration) {
				cmd := exec.Command(path)
				cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + pod.Name, "CNI_NETNS=" + pod.Path(), "CNI_IFNAME=eth0", "CNI_PATH=" + debianPlugins}
				cmd.Stdin = strings.NewReader(conf)
				node.In(func() error {
					out, err := cmd.Output()
					if err != nil {
						err = fmt.Errorf("%w: %s", err, out)
					}
					return err
				})
				return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
			}
			var cpu time.Duration
			i := 0
			for ; b.Loop(); i++ {
				b.StopTimer()
				pod := host(b, "pod")
				b.StartTimer()
				cpu += call("ADD", pod)
				b.StopTimer()
				call("DEL", pod)
				b.StartTimer()
			}
			b.ReportMetric(float64(cpu.Microseconds())/1000/float64(i), "cpu-ms/op")
		})
	}
}
