package kubelet

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// Port is where kubelets serve what the API server passes on: exec, attach and logs.
const Port = 10250

// idle is how long a terminal may do nothing, as in kubelets.
const idle = 4 * time.Hour

// noLogs is what kubectl logs shows.
const noLogs = "The lab runs no images, so there is no log: in place of each container a small server answers on its ports.\n" +
	"To run this machine's programs in the pod: kubectl exec -it POD -- sh\n"

// serve serves the API server's calls until ctx ends. Clients need a certificate of the cluster's
// authority. Without Config.Command it returns at once.
func (k *kubelet) serve(ctx context.Context) error {
	if k.Command == nil {
		return nil
	}
	cert, err := selfSigned(k.Node)
	if err != nil {
		return fmt.Errorf("make the kubelet's certificate: %w", err)
	}
	api, clients := rest.CopyConfig(k.API), x509.NewCertPool()
	if err := rest.LoadTLSFiles(api); err != nil {
		return fmt.Errorf("serve exec: %w", err)
	}
	if !clients.AppendCertsFromPEM(api.CAData) {
		return errors.New("serve exec: the kubeconfig has no authority's certificate")
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) { k.serveCommand(w, r, r.URL.Query()["command"]) })
	mux.HandleFunc("/attach/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) { k.serveCommand(w, r, nil) })
	mux.HandleFunc("/containerLogs/{namespace}/{pod}/{container}", k.serveLogs)
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(k.Log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return ctx },
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert},
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients,
			NextProtos: []string{"http/1.1"}, // connections are upgraded
		},
	}
	var listener net.Listener
	err = k.node.Do(func() (err error) {
		listener, err = net.Listen("tcp", fmt.Sprintf(":%d", Port))
		return err
	})
	if err != nil {
		return fmt.Errorf("serve exec: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve exec: %w", err)
	}
	return nil
}

// selfSigned makes a certificate that nobody verifies: the API server reaches its nodes by address.
func selfSigned(name string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(365 * 24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// serveCommand runs a command in a pod; without args that of the container, to which somebody
// attaches.
func (k *kubelet) serveCommand(w http.ResponseWriter, r *http.Request, args []string) {
	name := types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("pod")}
	k.mu.Lock()
	runner := k.runners[name]
	k.mu.Unlock()
	if runner == nil {
		http.Error(w, fmt.Sprintf("pod %s does not run on node %s", name, k.Node), http.StatusNotFound)
		return
	}
	if len(args) == 0 {
		pod, err := k.api.Pods(name.Namespace).Get(r.Context(), name.Name)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		if args = attachable(pod, r.PathValue("container")); args == nil {
			http.Error(w, "the lab runs no images: attach with -i to a container that has stdin, or use kubectl exec", http.StatusBadRequest)
			return
		}
	}
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go func() {
		select {
		case <-runner.done: // the pod has ended, and what runs in it does
			cancel()
		case <-ctx.Done():
		}
	}()
	remotecommand.ServeExec(w, r.WithContext(ctx), &terminal{k: k, pod: name}, name.Name, "", r.PathValue("container"), args, options,
		idle, remotecommand.DefaultStreamCreationTimeout, remotecommand.SupportedStreamingProtocols)
}

// serveLogs says why there are none; of a container that takes input, nothing, as kubectl run
// prints what comes before it attaches.
func (k *kubelet) serveLogs(w http.ResponseWriter, r *http.Request) {
	pod, err := k.api.Pods(r.PathValue("namespace")).Get(r.Context(), r.PathValue("pod"))
	if err == nil && attachable(pod, r.PathValue("container")) != nil {
		return
	}
	_, _ = io.WriteString(w, noLogs)
}

// attachable is the command of a container that takes input: a shell if it names none; nil if it
// takes none.
func attachable(pod *corev1.Pod, container string) []string {
	i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == container })
	if i < 0 || !pod.Spec.Containers[i].Stdin {
		return nil
	}
	c := &pod.Spec.Containers[i]
	if args := slices.Concat(c.Command, c.Args); len(args) > 0 {
		return args
	}
	return []string{"sh"}
}

// terminal runs this machine's programs in the network of a pod.
type terminal struct {
	k   *kubelet
	pod types.NamespacedName
}

// ExecInContainer implements remotecommand.Executor.
func (t *terminal) ExecInContainer(ctx context.Context, _, _, _ string, args []string, in io.Reader, out, errs io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize, _ time.Duration) error {
	if _, err := exec.LookPath(args[0]); err != nil && isShell(args[0]) {
		args = append([]string{"sh"}, args[1:]...) // this machine has no ash, perhaps
	}
	cmd := t.k.Command(ctx, t.pod.Namespace, t.pod.Name, args)
	// The command and all that it started end together.
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	run := runPiped
	if tty {
		run = func(cmd *exec.Cmd, in io.Reader, out, _ io.WriteCloser) error {
			return runOnTerminal(cmd, in, out, resize)
		}
	}
	err := run(cmd, in, out, errs)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return utilexec.CodeExitError{Err: err, Code: exit.ExitCode()}
	}
	return err
}

func runPiped(cmd *exec.Cmd, in io.Reader, out, errs io.WriteCloser) error {
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	if out != nil {
		cmd.Stdout = out
	}
	if errs != nil {
		cmd.Stderr = errs
	}
	if in != nil {
		// Wait would wait for the client to close its input, too.
		stdin, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		go func() {
			_, _ = io.Copy(stdin, in)
			_ = stdin.Close()
		}()
	}
	return cmd.Run()
}

func runOnTerminal(cmd *exec.Cmd, in io.Reader, out io.Writer, resize <-chan remotecommand.TerminalSize) error {
	f, err := pty.Start(cmd)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	go func() {
		for size := range resize {
			_ = pty.Setsize(f, &pty.Winsize{Rows: size.Height, Cols: size.Width})
		}
	}()
	if in != nil {
		go func() { _, _ = io.Copy(f, in) }()
	}
	if out != nil {
		_, _ = io.Copy(out, f) // until the last process of the terminal ends
	}
	return cmd.Wait()
}
