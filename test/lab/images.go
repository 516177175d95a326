package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/lab/image"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/standin"
)

// Ports of the control host: of the registry, and of the webhook that chooses stand-ins.
const (
	registryPort = 5000
	webhookPort  = 5443
)

// registry is the address of the lab's registry.
func registry() netip.AddrPort { return netip.AddrPortFrom(plan.ControlIPs[0], registryPort) }

// imageFolder contains the archives of the images that the lab's registry serves.
func (l *Lab) imageFolder() string { return filepath.Join(l.disks(), "images") }

// AgentImage is the image from which the agents run, unless an archive of the user's has it.
const AgentImage = "sluice.dev/lab/sluice:latest"

// serveImages starts the lab's registry, and has stand-ins run for what it lacks.
func (l *Lab) serveImages(ctx context.Context, exe string) error {
	if err := os.MkdirAll(l.imageFolder(), 0o755); err != nil {
		return fmt.Errorf("serve images: %w", err)
	}
	err := os.Symlink(l.Kubernetes.Images, filepath.Join(l.imageFolder(), "lab.tar"))
	if err == nil {
		err = image.WriteOwn(filepath.Join(l.imageFolder(), "stand-in.tar"), standin.Image, standin.Program, map[string]string{standin.Program[1:]: exe})
	}
	if err == nil && l.Kubernetes.AgentImage == AgentImage {
		err = image.WriteOwn(filepath.Join(l.imageFolder(), "agent.tar"), AgentImage, image.AgentEntrypoint, image.AgentPrograms(l.Sluice))
	}
	for _, archive := range l.Kubernetes.Load {
		if err == nil {
			_, err = l.load(archive)
		}
	}
	if err == nil {
		err = l.startImages(exe)
	}
	if err == nil {
		err = l.awaitRegistry(ctx)
	}
	if err != nil {
		return fmt.Errorf("serve images: %w", err)
	}
	return nil
}

// imagesName is what the process of the registry is recorded as.
const imagesName = "images"

func (l *Lab) startImages(exe string) error {
	webhook := netip.AddrPortFrom(plan.ControlIPs[0], webhookPort)
	return l.Plane(func(p *control.Plane) error {
		cert, key, err := p.ServerCertificate("images.lab", webhook.Addr())
		if err != nil {
			return err
		}
		err = l.start(plan.Control, imagesName, append(selfCommand(exe, imagesName), "--folder", l.imageFolder(), "--registry", registry().String(),
			"--webhook", webhook.String(), "--cert", cert, "--key", key, "--kubeconfig", l.userConfig(labUser)))
		if err != nil {
			return err
		}
		authority, err := p.Authority()
		if err != nil {
			return err
		}
		text, err := json.Marshal(webhookConfiguration("https://"+webhook.String(), authority))
		if err != nil {
			return err
		}
		path := l.path(plan.Control, "stand-ins.json")
		if err := l.write(path, text); err != nil {
			return err
		}
		if out, err := p.Kubectl("apply", "--server-side", "-f", path); err != nil {
			return fmt.Errorf("configure stand-ins: %w: %s", err, out)
		}
		return nil
	})
}

// webhookConfiguration has the API server ask about each pod that is made. Where nobody answers,
// pods are as they were.
func webhookConfiguration(url string, authority []byte) any {
	type object = map[string]any
	return object{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
		"metadata": object{"name": "sluice-lab"},
		"webhooks": []object{{
			"name": "stand-in.lab.sluice.dev", "admissionReviewVersions": []string{"v1"}, "sideEffects": "None", "failurePolicy": "Ignore", "timeoutSeconds": 5,
			"clientConfig": object{"url": url, "caBundle": authority},
			// There, a stand-in would look as if the cluster worked.
			"namespaceSelector": object{"matchExpressions": []object{{"key": corev1.LabelMetadataName, "operator": "NotIn", "values": []string{metav1.NamespaceSystem}}}},
			"rules":             []object{{"apiGroups": []string{""}, "apiVersions": []string{"v1"}, "operations": []string{"CREATE"}, "resources": []string{"pods"}}},
		}},
	}
}

// awaitRegistry waits until the registry answers.
func (l *Lab) awaitRegistry(ctx context.Context) error {
	ctx, cancel := within(ctx, serveTimeout)
	defer cancel()
	return l.awaitPage(ctx, plan.Control, imagesName, "http://"+registry().String()+"/v2/")
}

// Load gives the lab the images of an archive, as `docker save` and others write it, and returns
// their names. Nodes pull them when a pod wants them. A copy is kept for as long as the lab lives.
func (l *Lab) Load(archive string) (names []string, err error) {
	if l.Kubernetes == nil {
		return nil, fmt.Errorf("load images: lab %s has no nodes that run images; 'sluice lab up --kubernetes' starts one that has", l.Name)
	}
	return l.load(archive)
}

func (l *Lab) load(archive string) (names []string, err error) {
	images, err := image.Open(archive)
	if err != nil {
		return nil, err
	}
	names = images.Names()
	if err := images.Close(); err != nil {
		return nil, err
	}
	from, err := os.Open(archive)
	if err != nil {
		return nil, fmt.Errorf("load images: %w", err)
	}
	defer from.Close()
	to, err := os.CreateTemp(l.imageFolder(), "user-*.part")
	if err == nil {
		_, err = io.Copy(to, from)
		err = errors.Join(err, to.Close())
	}
	if err == nil {
		err = os.Rename(to.Name(), strings.TrimSuffix(to.Name(), ".part")+".tar")
	}
	if err != nil {
		return nil, fmt.Errorf("load images: %w", err)
	}
	return names, nil
}
