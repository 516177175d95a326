package health

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// call is a gRPC check. It dials by itself, since gRPC's errors do not say why in a word.
func call(ctx context.Context, p *probe) outcome {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.at.String())
	if err != nil {
		return p.broken(ctx, err)
	}
	defer conn.Close()
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return conn, nil }),
		grpc.WithUserAgent(userAgent),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithNoProxy(),
	}
	if p.Host != "" {
		options = append(options, grpc.WithAuthority(p.Host))
	}
	client, err := grpc.NewClient("passthrough:///"+p.at.String(), options...)
	if err != nil {
		return outcome{err: fmt.Errorf("make gRPC client: %w", err)}
	}
	defer func() { _ = client.Close() }()
	service := grpc_health_v1.HealthCheckRequest{Service: p.Service}
	answer, err := grpc_health_v1.NewHealthClient(client).Check(ctx, &service)
	if err != nil {
		return p.refused(ctx, err)
	}
	if answer.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		return down(answer.Status.String())
	}
	return up("SERVING")
}

// refused is the outcome of a call that ended with an error, in the words of gRPC's health
// checking protocol.
func (p *probe) refused(ctx context.Context, err error) outcome {
	s := status.Convert(err)
	switch {
	case ctx.Err() != nil, s.Code() == codes.DeadlineExceeded:
		return down(silence(p.Timeout))
	case s.Code() == codes.NotFound:
		return down(line(fmt.Sprintf("the server does not know the service %q", p.Service)))
	case s.Code() == codes.Unimplemented:
		return down("the server has no health service")
	}
	return down(line(fmt.Sprintf("%v: %s", s.Code(), s.Message())))
}
