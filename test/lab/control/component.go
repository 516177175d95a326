package control

import (
	"fmt"
	"sluice.dev/sluice/internal/model"
)

// arguments are a component's command line.
func (p *Plane) arguments(component string) []string {
	switch component {
	case Etcd:
		return p.etcdArguments()
	case APIServer:
		return append(p.apiServerArguments(), p.APIServerArgs...)
	case Controller:
		return p.controllerArguments()
	default:
		return p.schedulerArguments()
	}
}

// etcdArguments: a plane is for experiments, so it may lose data in a crash of the machine, and
// need not wait for the disk.
func (p *Plane) etcdArguments() []string {
	return []string{
		"--data-dir=" + p.path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + etcdURL,
		"--listen-peer-urls=" + etcdPeer, "--initial-advertise-peer-urls=" + etcdPeer, "--initial-cluster=default=" + etcdPeer,
	}
}

func (p *Plane) apiServerArguments() []string {
	args := []string{
		"--etcd-servers=" + etcdURL,
		"--advertise-address=" + p.Addr.String(), fmt.Sprintf("--secure-port=%d", Port),
		"--service-cluster-ip-range=" + model.Join(p.ServiceCIDRs, ","),
		"--client-ca-file=" + p.path(caCert), "--tls-cert-file=" + p.path(serverCert), "--tls-private-key-file=" + p.path(srvKey),
		"--service-account-issuer=" + serviceAccountsName,
		"--service-account-signing-key-file=" + p.path(accountKey), "--service-account-key-file=" + p.path(accountCert),
		"--allow-privileged", "--kubelet-preferred-address-types=InternalIP",
		"--kubelet-client-certificate=" + p.path(clientCert), "--kubelet-client-key=" + p.path(cltKey),
		"--shutdown-delay-duration=0s",
		"--enable-aggregator-routing", // webhooks are asked at their pods: nobody balances Services on this host
	}
	if p.RBAC {
		args = append(args, "--authorization-mode=Node,RBAC")
	} else {
		args = append(args, "--authorization-mode=AlwaysAllow")
	}
	if !p.Controllers { // nothing makes the service account that it needs for each pod
		args = append(args, "--disable-admission-plugins=ServiceAccount")
	}
	return args
}

// controllerArguments: request limits are raised, as a lab should follow at once where a cluster
// takes its time.
func (p *Plane) controllerArguments() []string {
	return []string{
		"--kubeconfig=" + p.path("system-kube-controller-manager.kubeconfig"),
		"--service-account-private-key-file=" + p.path(accountKey), "--root-ca-file=" + p.path(caCert),
		"--cluster-cidr=" + model.Join(p.ClusterCIDRs, ","), "--leader-elect=false", "--use-service-account-credentials",
		"--bind-address=127.0.0.1", "--kube-api-qps=500", "--kube-api-burst=1000",
	}
}

func (p *Plane) schedulerArguments() []string {
	return []string{
		"--kubeconfig=" + p.path("system-kube-scheduler.kubeconfig"), "--leader-elect=false",
		"--bind-address=127.0.0.1", "--kube-api-qps=500", "--kube-api-burst=1000",
	}
}
