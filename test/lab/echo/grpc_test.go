package echo

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"sluice.dev/sluice/test/world"
)

// A gRPC probe finds a pod healthy, again and again, on the port that also speaks HTTP and lines.
func TestGRPCHealth(t *testing.T) {
	h := world.NewHost(t, "pod")
	var s Server
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.Put(pod(h, "a", Port{"TCP", 80})); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for range 2 {
		client, err := grpc.NewClient("passthrough:127.0.0.1:80", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(_ context.Context, address string) (conn net.Conn, err error) {
				err = h.Do(func() error { conn, err = net.Dial("tcp", address); return err })
				return conn, err
			}))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			got, err := grpc_health_v1.NewHealthClient(client).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
			if err != nil || got.Status != grpc_health_v1.HealthCheckResponse_SERVING {
				t.Fatalf("health: %v, %v", got, err)
			}
		}
		if err := client.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if name, err := ask(t, h, "TCP", 80); name != "a" || err != nil {
		t.Errorf("asked by HTTP: %q, %v", name, err)
	}
}
