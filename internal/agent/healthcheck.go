package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
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
	servers map[model.Name]*healthCheck
	beside  bool      // kube-proxy ran
	looked  time.Time // when that was
}

// proxyInterval is the time between two looks at whether kube-proxy runs, while it may.
const proxyInterval = 10 * time.Second

// healthCheck is one service's server; server is nil while its port cannot be opened.
type healthCheck struct {
	want     services.HealthCheck
	local    atomic.Int64
	listener net.Listener
	server   *http.Server
	err      error
}

func newHealthChecks(log *slog.Logger, healthy func() bool, l limits, s sockets) *healthChecks {
	return &healthChecks{log: log, healthy: healthy, conns: l.checks, maxPorts: l.checkPorts, sockets: s, servers: map[model.Name]*healthCheck{}}
}

// apply carries out a change of the desired health checks.
func (h *healthChecks) apply(changes map[model.Name]*services.HealthCheck) {
	if len(changes) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, want := range changes {
		have := h.servers[name]
		if have != nil && (want == nil || want.Port != have.want.Port) {
			have.close()
			delete(h.servers, name)
			have = nil
		}
		if want == nil {
			continue
		}
		if have == nil {
			have = &healthCheck{}
			h.servers[name] = have
		}
		have.want = *want
		have.local.Store(int64(want.LocalEndpoints))
	}
	h.open()
}

// retry opens the ports that could not be opened so far. It is cheap if there are none.
func (h *healthChecks) retry() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open()
}

// open opens what is not open. Ports are freed before they are taken, so that two services can swap
// theirs. If two want the same port, the first by name gets it.
func (h *healthChecks) open() {
	var closed []*healthCheck
	for _, c := range h.servers {
		if c.server == nil {
			closed = append(closed, c)
		}
	}
	slices.SortFunc(closed, func(a, b *healthCheck) int { return a.want.Service.Compare(b.want.Service) })
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
	for _, name := range slices.SortedFunc(maps.Keys(h.servers), model.Name.Compare) {
		if c := h.servers[name]; h.kubeProxys(c) {
			theirs = append(theirs, fmt.Sprintf("%d of %s", c.want.Port, name))
		}
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
	for _, name := range slices.SortedFunc(maps.Keys(h.servers), model.Name.Compare) {
		if c := h.servers[name]; c.err != nil && !h.kubeProxys(c) {
			issues = append(issues, model.Ref{Kind: model.ServiceKind, Name: name}.Issue(
				fmt.Sprintf("healthCheckNodePort %d cannot be served: %v", c.want.Port, c.err)))
		}
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
	l, err := h.sockets.Listen("tcp", net.JoinHostPort("", strconv.Itoa(int(c.want.Port))))
	c.err = err
	if err != nil {
		return
	}
	name := c.want.Service
	c.listener = l
	c.server = newServer(probeTimeout, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answerHealthCheck(w, name, c.local.Load(), h.healthy())
	}))
	// No client reuses a connection, and idle ones would outlive the port.
	c.server.SetKeepAlivesEnabled(false)
	go serve(h.log, "health check of "+name.String(), c.server, h.conns.Listen(l))
}

func (c *healthCheck) close() {
	if c.server != nil {
		_ = c.server.Close()
		_ = c.listener.Close() // the server learns of it only when its goroutine has run
	}
}

// answerHealthCheck gives kube-proxy's answer; load balancers parse it.
func answerHealthCheck(w http.ResponseWriter, name model.Name, local int64, healthy bool) {
	code := http.StatusServiceUnavailable
	if local > 0 && healthy {
		code = http.StatusOK
	}
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(local, 10))
	type service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	}
	writeJSON(w, code, struct {
		Service             service `json:"service"`
		LocalEndpoints      int64   `json:"localEndpoints"`
		ServiceProxyHealthy bool    `json:"serviceProxyHealthy"`
	}{service(name), local, healthy})
}
