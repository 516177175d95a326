package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sluice.dev/sluice/internal/lib/connlimit"
	"sluice.dev/sluice/internal/model"
	services "sluice.dev/sluice/internal/services/compile"
)

// healthChecks answers cloud load balancers on the healthCheckNodePort of each service that has
// one: 200 while this node has a ready endpoint of the service and the agent is healthy, else 503.
type healthChecks struct {
	log      *slog.Logger
	healthy  func() bool      // of the agent; called by many goroutines
	conns    *connlimit.Limit // of all servers together
	maxPorts int              // open at the same time
	sockets  sockets
	proxy    func() bool // whether kube-proxy runs, which has such ports, too; nil: it does not

	mu      sync.Mutex
	servers map[uint16]*healthCheck // by port
	beside  bool                    // kube-proxy ran
	looked  time.Time               // when that was
}

// proxyInterval is the time between two looks at whether kube-proxy runs, while it may.
const proxyInterval = 10 * time.Second

// healthCheck is the server of a port; server is nil while it cannot be opened.
type healthCheck struct {
	want     atomic.Pointer[services.HealthCheck]
	listener net.Listener
	server   *http.Server
	err      error
}

func newHealthChecks(log *slog.Logger, healthy func() bool, l limits, s sockets) *healthChecks {
	return &healthChecks{log: log, healthy: healthy, conns: l.checks, maxPorts: l.checkPorts, sockets: s, servers: map[uint16]*healthCheck{}}
}

// apply carries out a change of the desired health checks.
func (h *healthChecks) apply(changes map[uint16]*services.HealthCheck) {
	if len(changes) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for port, want := range changes {
		have := h.servers[port]
		if want == nil {
			have.close()
			delete(h.servers, port)
			continue
		}
		if have == nil {
			have = &healthCheck{}
			h.servers[port] = have
		}
		have.want.Store(want)
	}
	h.open()
}

// retry opens the ports that could not be opened so far. It is cheap if there are none.
func (h *healthChecks) retry() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open()
}

// open opens what is not open.
func (h *healthChecks) open() {
	closed := h.those(func(c *healthCheck) bool { return c.server == nil })
	open := len(h.servers) - len(closed)
	for _, c := range closed {
		if open >= h.maxPorts {
			c.err = fmt.Errorf("%d others are served, and this process may have few file descriptors: raise their limit (LimitNOFILE=, ulimit -n)", open)
			continue
		}
		if c.open(h); c.server != nil {
			open++
		}
	}
}

// those are the servers of which something is so, sorted by their services.
func (h *healthChecks) those(is func(*healthCheck) bool) (list []*healthCheck) {
	for _, c := range h.servers {
		if is(c) {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b *healthCheck) int { return a.want.Load().Service.Compare(b.want.Load().Service) })
	return list
}

// kubeProxys reports whether the process that has a port is likely to be kube-proxy, which has all
// of them until it is stopped.
func (h *healthChecks) kubeProxys(c *healthCheck) bool {
	if h.proxy == nil || !errors.Is(c.err, syscall.EADDRINUSE) {
		return false
	}
	if time.Since(h.looked) > proxyInterval {
		h.beside, h.looked = h.proxy(), time.Now()
	}
	return h.beside
}

// notes names the ports that kube-proxy still has.
func (h *healthChecks) notes() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var theirs []string
	for _, c := range h.those(h.kubeProxys) {
		theirs = append(theirs, fmt.Sprintf("%d of %s", c.want.Load().Port, c.want.Load().Service))
	}
	if len(theirs) == 0 {
		return nil
	}
	return []string{"kube-proxy runs on this node and has the health check node ports of Services (" + model.FirstFew(theirs, 3) + "): the agent serves them half a second after it has ended"}
}

// issues names the services whose port cannot be opened, sorted by name.
func (h *healthChecks) issues() []model.Issue {
	h.mu.Lock()
	defer h.mu.Unlock()
	var issues []model.Issue
	for _, c := range h.those(func(c *healthCheck) bool { return c.err != nil && !h.kubeProxys(c) }) {
		issues = append(issues, model.Ref{Kind: model.ServiceKind, Name: c.want.Load().Service}.Issue(
			fmt.Sprintf("healthCheckNodePort %d cannot be served: %v", c.want.Load().Port, c.err)))
	}
	return issues
}

// close ends all servers.
func (h *healthChecks) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.servers {
		c.close()
	}
	clear(h.servers)
}

func (c *healthCheck) open(h *healthChecks) {
	want := c.want.Load()
	l, err := h.sockets.Listen("tcp", net.JoinHostPort("", strconv.Itoa(int(want.Port))))
	c.err = err
	if err != nil {
		return
	}
	c.listener = l
	c.server = newServer(probeTimeout, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answerHealthCheck(w, *c.want.Load(), h.healthy())
	}))
	// No client reuses a connection, and idle ones would outlive the port.
	c.server.SetKeepAlivesEnabled(false)
	go serve(h.log, "health check of "+want.Service.String(), c.server, h.conns.Listen(l))
}

func (c *healthCheck) close() {
	if c != nil && c.server != nil {
		_ = c.server.Close()
		_ = c.listener.Close() // the server learns of it only when its goroutine has run
	}
}

// answerHealthCheck gives kube-proxy's answer; load balancers parse it.
func answerHealthCheck(w http.ResponseWriter, check services.HealthCheck, healthy bool) {
	code := http.StatusServiceUnavailable
	if check.LocalEndpoints > 0 && healthy {
		code = http.StatusOK
	}
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(check.LocalEndpoints))
	type service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	}
	writeJSON(w, code, struct {
		Service             service `json:"service"`
		LocalEndpoints      int     `json:"localEndpoints"`
		ServiceProxyHealthy bool    `json:"serviceProxyHealthy"`
	}{service(check.Service), check.LocalEndpoints, healthy})
}
