# Sluice: run `make help` for what there is. Most targets want root: they work in
# network namespaces, and install the tools they lack with apt-get.

SHELL   := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

comma := ,

export PATH := $(PATH):/usr/sbin:/sbin:/usr/local/go/bin

# One set of flags for programs, tests and linters, so that each package is compiled once for all.
# DWARF takes a sixth of the compiler's time, and programs are stripped of it anyway.
export CGO_ENABLED := 0
export GOFLAGS := -trimpath -buildvcs=false -gcflags=all=-dwarf=false

# What `sluice version` prints: the release, which is the chart's, and of a commit that is not tagged
# as that the commit, too.
COMMIT  := $(shell git describe --always --abbrev=12 --exclude='*' --dirty 2>/dev/null)
VERSION ?= $(shell git describe --tags --exact-match --dirty 2>/dev/null || sed -n 's/^version: \(.*\)/v\1$(COMMIT:%=+%)/p' deploy/helm/sluice/Chart.yaml)
LDFLAGS := -s -w -X sluice.dev/sluice/internal/cli.version=$(VERSION) -X sluice.dev/sluice/internal/cli.commit=$(COMMIT)

# Manifests for `make run`, folders and files, parted by commas; without it, examples/shop and, if it is
# in the folder BOUTIQUE, Online Boutique. A folder with farms.json is shown with `sluice balance`.
APP      ?=
BOUTIQUE ?= ../shared/manifests/online-boutique
# Arguments for `make run`: "-v" also shows where each request went.
RUN ?=
# Packages for `make test`: "PKG=./test/policytest", for one.
PKG   ?= ./...
# Arguments for `make bench`: "--scale small latency", for one.
BENCH ?=
# Arguments for `make test-vm`: "-v -run TestName internal/driver/nftables", for one.
VM    ?=

# Arguments for `make e2e`: "sig-network --data-plane kube-proxy-nftables", for one.
E2E   ?= sig-network

# Arguments for `make fuzz-api` and `make fuzz-bgp`: "--seed 7", for one.
FUZZ  ?=

# The architectures that `make image` and `make release` build for. Version and name of the image are
# the chart's.
ARCHES ?= amd64,arm64

# Debian packages, by what needs them.
RUN_TOOLS   := nftables iproute2
TEST_TOOLS  := mmdebstrap rpm curl nftables iproute2 iptables ipset nftlb haproxy systemd qemu-user-static wget containernetworking-plugins frr bird2 keepalived conntrackd conntrack skopeo docker-registry containerd
BENCH_TOOLS := nftables iproute2 iptables ipset nftlb haproxy iperf3 containernetworking-plugins bird2 containerd mmdebstrap
BPF_TOOLS   := clang libbpf-dev linux-libc-dev
E2E_TOOLS   := nftables iproute2 conntrack mmdebstrap containernetworking-plugins containerd frr frr-pythontools iputils-ping arping ndisc6
FUZZ_TOOLS  := iproute2 curl python3-venv
VM_TOOLS    := qemu-system-x86 nftables iproute2

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | while IFS=$$'\t' read -r t h; do printf '  make %-10s %s\n' "$$t" "$$h"; done

.PHONY: build
build: ## Build bin/sluice, bin/sluice-bgp, bin/sluice-cni and bin/sluice-lab, static binaries
	@mkdir -p bin
	GOGC=400 go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/sluice ./cmd/sluice-bgp ./cmd/sluice-cni ./test/sluice-lab

.PHONY: run
run: build ## Start a lab cluster and show what Sluice does in it, with real traffic (APP=folder or files, RUN=-v for all requests)
	@hack/need "the lab" $(RUN_TOOLS)
ifneq ($(APP),)
	@bin/sluice lab demo $(RUN) '$(subst $(comma),' ',$(APP))'
else
	@bin/sluice lab demo $(RUN)
  ifneq ($(wildcard $(BOUTIQUE)),)
	@printf '\n%s\n\n' 'Online Boutique, of $(BOUTIQUE):'
	@bin/sluice lab demo --check $(RUN) '$(BOUTIQUE)'
  endif
endif

.PHONY: picture
picture: build ## Draw docs/run.svg, the picture of `make run` in README.md, from a run
	@hack/need "the lab" $(RUN_TOOLS)
	@bin/sluice lab demo --picture docs/run.svg

# Most tests wait for packets and programs more than they compute: more of them run at the same time
# than there are cores. The longest come first, so that none is left alone at the end. go vet is
# `make lint`'s. Compilers, tests and the programs that they start let garbage grow to four times what
# they use before they collect it: that saves a twelfth of the time.
GO_TEST := env GOGC=400 go test -count=1 -vet=off -timeout 20m -p 2 -parallel 3
LONGEST := $(addprefix ./,test/sluice-lab test/policytest docs internal/driver/iptables test/lab/suite internal/driver/userspace internal/driver/nftables deploy cmd/sluice)
# hack/slowest reads that of all packages.
TEST_LOG := $(CURDIR)/bin/$(if $(filter ./...,$(PKG)),test,test-some).log

.PHONY: test test-packages test-release check
test test-packages test-release check: export SLUICE_PROGRAMS := $(CURDIR)/bin
test: build ## Run all tests that one machine can run, kernel tests in network namespaces included (PKG=./folder for one package)
	@hack/need "the tests" $(TEST_TOOLS)
	bin/sluice lab build --tools
	@: >$(TEST_LOG)
	@$(MAKE) --no-print-directory --keep-going --jobs=2 test-packages $(if $(filter ./...,$(PKG)),test-release)

test-packages:
	$(GO_TEST) $(if $(filter ./...,$(PKG)),$(LONGEST)) $(PKG) 2>&1 | tee -a $(TEST_LOG)

# Another module, whose test compiles and packs: it takes what time the others leave.
test-release:
	cd release && nice $(GO_TEST) ./... 2>&1 | tee -a $(TEST_LOG)

check: build ## Format, vet and lint what changed, and run all tests that need no kernel: a minute
	@hack/check

.PHONY: e2e
e2e: build ## Run the tests of others on a lab with Kubernetes (E2E="conformance", for one set of 'sluice lab e2e')
	@hack/need "the tests" $(E2E_TOOLS)
	bin/sluice lab e2e $(E2E)

.PHONY: test-vm
test-vm: ## Run the packet table, policies and tunnels in QEMU guests with the stock kernels of Debian 12 (6.1) and 13 (6.12)
	@hack/need "the guest" $(VM_TOOLS)
	go run ./test/vm $(VM)
	go run ./test/vm -suite trixie $(VM)

.PHONY: fuzz-api
fuzz-api: build ## Have schemathesis send the balancer's API thousands of requests, of which none may end in a 500
	@hack/need "fuzzing the API" $(FUZZ_TOOLS)
	hack/fuzz-api $(FUZZ)

.PHONY: fuzz-bgp
fuzz-bgp: build ## Have sluice-bgp hear what BGP does not allow, made with scapy; the session with another peer has to last
	@hack/need "fuzzing BGP" $(FUZZ_TOOLS)
	hack/fuzz-bgp $(FUZZ)

.PHONY: bench
bench: build ## Measure, compare and draw docs/benchmarks (BENCH='arguments of sluice bench')
	@hack/need "the bench" $(BENCH_TOOLS)
	bin/sluice bench $(BENCH)

.PHONY: lint
lint: ## Check the sources: format, vet, staticcheck, errcheck, dead code, go.mod, workflows …
	@hack/need "the linters" git
	@hack/lint

.PHONY: generate
generate: ## Make the generated files again (the BPF objects, with Debian 12's clang)
	@hack/need "compiling BPF" $(BPF_TOOLS)
	go generate ./...

.PHONY: image
image: ## Build the container image into bin/image, an OCI layout (ARCHES=amd64,arm64)
	go -C release run . -arch '$(ARCHES)' -image-only -out $(CURDIR)/bin/image

.PHONY: release
release: ## Build all files of a release into bin/release: archives, packages, image, chart, bill of materials (ARCHES=amd64,arm64)
	go -C release run . -arch '$(ARCHES)' -out $(CURDIR)/bin/release

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin
