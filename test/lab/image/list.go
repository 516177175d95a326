package image

import (
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"sluice.dev/sluice/test/lab/build"
)

// An image is layers, lowest first, and how its program is started.
type image struct {
	name   string
	layers []string // names of layers; debian is what mmdebstrap makes
	config ocispec.ImageConfig
}

// suite is the registry of the images of Kubernetes' own suite.
const suite = "registry.k8s.io/e2e-test-images/"

// images are those of the suite of Kubernetes 1.37.1 for networks, by the names that
// test/utils/image of its module has, and those that people's manifests name most. Of a repository
// the newest comes last.
var images = []image{
	{"registry.k8s.io/pause:3.10.2", []string{"pause"}, run("/pause")},
	{"registry.k8s.io/coredns/coredns:v1.14.7", []string{"coredns"}, run("/coredns")},

	{suite + "agnhost:2.55", agnhost, run("/agnhost", "pause")},
	{suite + "agnhost:2.66.1", agnhost, run("/agnhost", "pause")},
	{suite + "busybox:1.37.0-2", debian, busybox},
	{suite + "nginx:1.27.0-2", nginx, run("", "nginx", "-g", "daemon off;")},
	{suite + "nginx:1.28.0-2", nginx, run("", "nginx", "-g", "daemon off;")},
	{suite + "glibc-dns-testing:2.1.1", []string{"debian", "settings", "coredns"}, run("", "bash")},
	{suite + "regression-issue-74839:1.5", []string{"regression"}, run("/regression-issue-74839")},
	{"registry.k8s.io/build-image/distroless-iptables:v0.9.7", debian, run("", "sleep", "infinity")},

	{"registry.k8s.io/kube-proxy:v1.37.1", []string{"debian", "settings", "kube-proxy"}, run("/usr/local/bin/kube-proxy")},

	{"docker.io/library/alpine:latest", debian, busybox},
	{"docker.io/library/busybox:latest", debian, busybox},
	{"docker.io/library/debian:latest", debian, run("", "bash")},
	{"docker.io/library/nginx:latest", nginx, run("", "nginx", "-g", "daemon off;")},
	{"docker.io/library/httpd:latest", []string{"debian", "settings", "httpd"}, run("", "httpd-foreground")},
	{"docker.io/library/redis:latest", []string{"debian", "settings", "redis"}, in("/data", run("/usr/local/bin/entrypoint redis-server"))},
	{"docker.io/curlimages/curl:latest", debian, run("/usr/local/bin/entrypoint curl", "curl")},
	{"docker.io/networkstatic/iperf3:latest", debian, run("iperf3")},
	{"docker.io/nicolaka/netshoot:latest", debian, run("", "bash")},
}

var (
	debian  = []string{"debian", "settings"}
	nginx   = []string{"debian", "settings", "nginx"}
	agnhost = []string{"debian", "settings", "coredns", "iperf", "agnhost"}

	// BusyBox's programs are found before those of other packages.
	busybox = ocispec.ImageConfig{Env: []string{"PATH=/opt/busybox:" + searchPath}, Cmd: []string{"sh"}}
)

const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// A layer is what an image adds to the layers below.
type layer []file

// A file has one of text, link, program and source; a folder has none of them.
type file struct {
	path    string // from the root, without the first slash
	text    string
	link    string // what a symbolic link points to
	program string // one that is built
	source  string // a file of the module k8s.io/kubernetes
	mode    int64  // if it is not 0644, or 0755 for a folder or program
}

var layers = map[string]layer{
	"pause":      {{path: "pause", program: "pause"}},
	"coredns":    {{path: "coredns", program: "coredns"}},
	"kube-proxy": {{path: "usr/local/bin/kube-proxy", program: "kube-proxy"}},
	"regression": {{path: "regression-issue-74839", program: "regression-issue-74839"}},
	"agnhost": {
		{path: "agnhost", program: "agnhost"},
		{path: "agnhost-2", link: "agnhost"},
		{path: "localhost.crt", source: "test/images/agnhost/porter/localhost.crt"},
		{path: "localhost.key", source: "test/images/agnhost/porter/localhost.key"},
		{path: "uploads"},
		{path: "usr/bin/iperf", text: iperf, mode: 0o755},
	},
	"nginx": {
		{path: "etc/nginx/nginx.conf", text: nginxConf},
		{path: "etc/nginx/conf.d/default.conf", text: nginxSite},
		{path: "var/log/nginx/access.log", link: "/dev/stdout"},
		{path: "var/log/nginx/error.log", link: "/dev/stderr"},
	},
	"httpd": {
		{path: "usr/local/apache2/conf/httpd.conf", text: httpdConf},
		{path: "usr/local/apache2/htdocs/index.html", text: "<html><body><h1>It works!</h1></body></html>\n"},
		{path: "usr/local/apache2/logs"},
		{path: "usr/local/bin/httpd-foreground", text: httpdForeground, mode: 0o755},
	},
	"redis": {
		{path: "data"},
		{path: "usr/local/bin/redis-server", text: redisServer, mode: 0o755},
	},
	// settings are what the packages' scripts would do, were they installed and not only unpacked.
	"settings": {
		{path: "etc/passwd", text: passwd},
		{path: "etc/group", text: group},
		{path: "etc/nsswitch.conf", text: "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n"},
		{path: "etc/wgetrc", text: "tries = 1\n"}, // by itself it tries 20 times, for minutes
		{path: "usr/bin/sh", link: "bash"},
		{path: "usr/bin/awk", link: "mawk"},
		{path: "usr/bin/nc", link: "nc.openbsd"},
		{path: "usr/bin/traceroute", link: "traceroute.db"},
		{path: "usr/bin/traceroute6", link: "traceroute6.db"},
		{path: "usr/bin/vi", link: "vim.tiny"},
		{path: "usr/bin/which", link: "which.debianutils"},
		{path: "usr/sbin/iptables", link: "iptables-nft"},
		{path: "usr/sbin/iptables-save", link: "iptables-nft-save"},
		{path: "usr/sbin/iptables-restore", link: "iptables-nft-restore"},
		{path: "usr/sbin/ip6tables", link: "ip6tables-nft"},
		{path: "usr/sbin/ip6tables-save", link: "ip6tables-nft-save"},
		{path: "usr/sbin/ip6tables-restore", link: "ip6tables-nft-restore"},
		{path: "opt/busybox/wget", link: "/usr/bin/wget"}, // Debian's BusyBox crashes where its wget has an error to report
		{path: "usr/local/bin/entrypoint", text: entrypoint, mode: 0o755},
	},
}

// programs are those of the images.
var programs = build.Set{Name: "image-programs", Programs: []build.Program{
	{Name: "pause", Module: "kube/images", Package: "./pause"},
	{Name: "coredns", Module: "kube/images", Package: "./coredns"},
	{Name: "kube-proxy", Module: "kube", Package: "k8s.io/kubernetes/cmd/kube-proxy"},
	{Name: "regression-issue-74839", Module: "kube", Package: "k8s.io/kubernetes/test/images/regression-issue-74839"},
	{Name: "agnhost", Module: "kube", Package: "k8s.io/kubernetes/test/images/agnhost", With: "sctp"},
}}
