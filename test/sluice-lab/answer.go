package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/test/lab/echo"
	"sluice.dev/sluice/test/lab/standin"
)

func newLabAnswerCommand() *cobra.Command {
	var (
		ports []string
		once  bool
		drain time.Duration
	)
	cmd := &cobra.Command{
		Use:    "answer",
		Short:  "Be the stand-in in a container: answer on its ports",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if once {
				return nil
			}
			pod, err := answeringPod(ports)
			if err != nil {
				return err
			}
			var server echo.Server
			if err := server.Put(pod); err != nil {
				return err
			}
			<-cmd.Context().Done()
			server.Drain(pod)
			after, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), drain)
			defer cancel()
			<-after.Done()
			return server.Close()
		},
	}
	cmd.Flags().StringSliceVar(&ports, "ports", nil, "ports to answer on, as 80 or 53/UDP")
	cmd.Flags().DurationVar(&drain, "drain", 2*time.Second, "`time` to go on after the signal to end, as a well-behaved server does: it may still be an endpoint")
	cmd.Flags().BoolVar(&once, "once", false, "end at once")
	return cmd
}

// answeringPod is the pod of the container that this program runs in, from its environment.
func answeringPod(ports []string) (echo.Pod, error) {
	pod := echo.Pod{Namespace: os.Getenv(standin.NamespaceEnv), Name: os.Getenv(standin.PodEnv), Node: os.Getenv(standin.NodeEnv)}
	for _, text := range strings.FieldsFunc(os.Getenv(standin.AddrsEnv), func(r rune) bool { return r == ',' }) {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return pod, fmt.Errorf("%s: %w", standin.AddrsEnv, err)
		}
		pod.Addrs = append(pod.Addrs, a)
	}
	for _, text := range ports {
		number, protocol, given := strings.Cut(text, "/")
		if !given {
			protocol = "TCP"
		}
		port, err := strconv.ParseUint(number, 10, 16)
		if err != nil || port == 0 {
			return pod, fmt.Errorf("--ports: %q is no port; write 80 or 53/UDP", text)
		}
		pod.Ports = append(pod.Ports, echo.Port{Protocol: strings.ToUpper(protocol), Port: uint16(port)})
	}
	return pod, nil
}
