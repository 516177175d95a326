package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/source/kube"
	"sluice.dev/sluice/test/lab/image"
	"sluice.dev/sluice/test/lab/kubeapi"
	"sluice.dev/sluice/test/lab/node"
	"sluice.dev/sluice/test/lab/standin"
)

// imageServer is the lab's registry, and decides in which containers stand-ins run.
type imageServer struct {
	folder            string
	registry, webhook string // addresses
	cert, key         string // files of the webhook's
	kubeconfig        string
	log               *slog.Logger

	images *image.Images
	mu     sync.Mutex
	loaded map[string]bool // archives
}

func newLabImagesCommand() *cobra.Command {
	var s imageServer
	cmd := &cobra.Command{
		Use:    "images",
		Short:  "Serve a lab's images as a registry, and stand-ins for those that it lacks",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s.log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			return s.run(cmd.Context())
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&s.folder, "folder", "", "`folder` with archives of images; what is added later counts, too")
	fl.StringVar(&s.registry, "registry", "", "`address` of the registry, without TLS")
	fl.StringVar(&s.webhook, "webhook", "", "`address` of the admission webhook, with TLS")
	fl.StringVar(&s.cert, "cert", "", "`file` with the webhook's certificate")
	fl.StringVar(&s.key, "key", "", "`file` with the certificate's key")
	fl.StringVar(&s.kubeconfig, "kubeconfig", "", "kubeconfig `file` of the API server, for Events")
	for _, required := range []string{"folder", "registry", "webhook", "cert", "key", "kubeconfig"} {
		_ = cmd.MarkFlagRequired(required)
	}
	return cmd
}

func (s *imageServer) run(ctx context.Context) (err error) {
	release, err := node.HoldDisks(filepath.Dir(s.folder)) // also while all nodes are off
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	if err != nil {
		return fmt.Errorf("read %s: %w", s.kubeconfig, err)
	}
	config.UserAgent = "sluice-lab-images/" + cli.Version()
	kube.TakeLogs(s.log)
	api, err := kubeapi.New(config)
	if err != nil {
		return err
	}
	if s.images, err = image.Open(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.images.Close()) }()
	s.loaded = map[string]bool{}
	s.load()
	images := s.images.Handler("")
	registry := &http.Server{Addr: s.registry, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.load() // of pods in kube-system, the webhook is not asked
		images.ServeHTTP(w, r)
	})}
	webhook := &http.Server{Addr: s.webhook, Handler: standin.Handler(func(name string) bool {
		s.load() // what was loaded a moment ago counts
		return s.images.Has(name)
	})}
	ended := make(chan error, 2)
	go func() { ended <- registry.ListenAndServe() }()
	go func() { ended <- webhook.ListenAndServeTLS(s.cert, s.key) }()
	go standin.Report(ctx, api, s.log)
	select {
	case <-ctx.Done():
	case err = <-ended:
	}
	return errors.Join(err, registry.Close(), webhook.Close())
}

// load reads the archives of the folder that are new.
func (s *imageServer) load() {
	s.mu.Lock()
	defer s.mu.Unlock()
	archives, _ := filepath.Glob(filepath.Join(s.folder, "*.tar")) // sorted; the pattern is well-formed
	for _, a := range archives {
		if s.loaded[a] {
			continue
		}
		s.loaded[a] = true
		if err := s.images.Load(a); err != nil {
			s.log.Error("cannot read images", "archive", a, "err", err)
		}
	}
}
