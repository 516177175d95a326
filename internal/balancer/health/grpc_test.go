package health

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpchealth "google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

func TestGRPC(t *testing.T) {
	serve := func(register func(*grpc.Server)) netip.AddrPort {
		l, at := listen(t, "tcp4", "127.0.0.1:0")
		s := grpc.NewServer()
		register(s)
		go func() { _ = s.Serve(l) }()
		t.Cleanup(s.Stop)
		return at
	}
	health := grpchealth.NewServer()
	health.SetServingStatus("shop", healthpb.HealthCheckResponse_SERVING)
	health.SetServingStatus("cart", healthpb.HealthCheckResponse_NOT_SERVING)
	at := serve(func(s *grpc.Server) { healthpb.RegisterHealthServer(s, health) })
	b := run(t, Options{})
	b.want(Check{Type: GRPC}, at, true, "SERVING")
	b.want(Check{Type: GRPC, Service: "shop"}, at, true, "SERVING")
	b.want(Check{Type: GRPC, Service: "cart"}, at, false, "NOT_SERVING")
	b.want(Check{Type: GRPC, Service: "nobody"}, at, false, `the server does not know the service "nobody"`)
	b.want(Check{Type: GRPC}, serve(func(*grpc.Server) {}), false, "the server has no health service")
	b.want(Check{Type: GRPC}, closed(t), false, "connection refused")
	b.want(Check{Type: GRPC}, serve(func(s *grpc.Server) { healthpb.RegisterHealthServer(s, failing{}) }), false, "Internal: disk full")
	slow := serve(func(s *grpc.Server) { healthpb.RegisterHealthServer(s, silent{}) })
	b.want(quick(Check{Type: GRPC}), slow, false, "no answer within 100ms")
}

// silent is a health service that answers too late.
type silent struct {
	healthpb.UnimplementedHealthServer
}

func (silent) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Minute):
	}
	return nil, ctx.Err()
}

// failing is a health service that is not well itself.
type failing struct {
	healthpb.UnimplementedHealthServer
}

func (failing) Check(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	return nil, status.Error(codes.Internal, "disk full")
}
