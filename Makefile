# Everything that people and CI do with this repository. Start with: make help

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
GOFLAGS_STATIC := -trimpath -ldflags "-s -w -X main.version=$(VERSION)"
# The programs that are embedded in cloudless, compressed, in a folder for each architecture.
EMBEDDED := internal/programs/embedded
PROGRAMS = $(addprefix $(EMBEDDED)/$(shell go env GOARCH)/,cloudless-shim.gz cloudless-net.gz cloudless-ingress.gz)
TOOL := go tool -modfile=$(CURDIR)/tools/go.mod
# What running and testing need from the distribution, as command=package.
RUN_NEEDS := runc=runc nft=nftables ip=iproute2
TEST_NEEDS := $(RUN_NEEDS) busybox=busybox-static containerd=containerd gcc=gcc curl=curl skopeo=skopeo systemd-analyze=systemd mkfs.ext4=e2fsprogs git=git pgrep=procps dig=bind9-dnsutils musl-gcc=musl-tools tcpdump=tcpdump openssl=openssl node=nodejs npm=npm iperf3=iperf3 miniupnpd=miniupnpd-nftables runsc=runsc aws=awscli s3cmd=s3cmd rclone=rclone restic=restic
# Flags of every cloudless that make up calls, and how the example app is published.
UP_FLAGS ?=
# Flags of the guided demonstrations.
DEMO_FLAGS ?=
HELLO := --publish 8080:8080

.PHONY: help
help: ## Show this list.
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# install-missing COMMAND=PACKAGE... installs the packages of the commands that are not there.
define install-missing
	@missing=(); for need in $(1); do command -v $${need%%=*} >/dev/null || missing+=($${need##*=}); done; \
	[[ " $(1) " != *" gcc="* || -e /usr/include/stdio.h ]] || missing+=(libc6-dev); \
	[ $${#missing[@]} -gt 0 ] || exit 0; \
	if ! command -v apt-get >/dev/null; then echo "$${missing[*]} must be installed, and there is no apt-get here: install it with your package manager" >&2; exit 1; fi; \
	if [ "$$(id -u)" != 0 ]; then echo "$${missing[*]} must be installed, which needs root: run sudo make $@" >&2; exit 1; fi; \
	echo "installing $${missing[*]}"; \
	apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$${missing[@]}" >/dev/null
endef

.PHONY: deps
deps: ## Install what running needs and is missing (apt, as root).
	$(call install-missing,$(RUN_NEEDS))

# What only measuring needs.
BENCH_NEEDS := nginx=nginx-light h2load=nghttp2-client

.PHONY: bench-deps
bench-deps: ## Install what measuring needs and is missing (apt, as root).
	$(call install-missing,$(BENCH_NEEDS))

.PHONY: test-deps
test-deps: ## Install what the tests need and is missing (apt, as root).
	$(call install-missing,$(TEST_NEEDS))
	@$(MAKE) --no-print-directory test/openid/provider/node_modules/.package-lock.json

# The OpenID provider that the tests log in at, as its lock file names it.
test/openid/provider/node_modules/.package-lock.json: test/openid/provider/package-lock.json
	cd test/openid/provider && npm ci --ignore-scripts --no-audit --no-fund
	@touch $@

.PHONY: generate
generate: ## Make api/gen and internal/state/kinds_gen.go from the .proto files.
	cd tools && go run ./gen -root ..

.PHONY: docs
docs: $(PROGRAMS) ## Make the generated pages of docs/ from the code.
	go run ./docs/generate -dir docs

.PHONY: programs
programs: $(PROGRAMS) ## Build the programs that are embedded in cloudless.

# The shim runs once per container, so it is built without gRPC and stripped.
$(EMBEDDED)/%/cloudless-shim.gz: go.mod go.sum $(filter-out %_test.go,$(wildcard cmd/cloudless-shim/*.go internal/logfile/*.go))
	CGO_ENABLED=0 GOOS=linux GOARCH=$* go build -tags no_grpc -trimpath -ldflags "-s -w" -o build/cloudless-shim-$* ./cmd/cloudless-shim
	gzip -9nc build/cloudless-shim-$* > $@.tmp
	mv $@.tmp $@

$(EMBEDDED)/%/cloudless-net.gz: go.mod go.sum $(filter-out %_test.go,$(wildcard cmd/cloudless-net/*.go internal/netd/*.go internal/resolver/*.go internal/resolvconf/*.go internal/sleep/*.go internal/atomicfile/*.go internal/deadpeer/*.go internal/mesh/*.go internal/mesh/portmap/*.go internal/mesh/relay/*.go internal/identity/*.go))
	CGO_ENABLED=0 GOOS=linux GOARCH=$* go build -trimpath -ldflags "-s -w" -o build/cloudless-net-$* ./cmd/cloudless-net
	gzip -9nc build/cloudless-net-$* > $@.tmp
	mv $@.tmp $@

# Like the shim without gRPC: it needs the messages of the API, and not its services.
$(EMBEDDED)/%/cloudless-ingress.gz: go.mod go.sum $(filter-out %_test.go,$(wildcard cmd/cloudless-ingress/*.go internal/ingressd/*.go internal/ingress/*.go internal/ingress/*/*.go internal/trafficstat/*.go internal/listeners/*.go internal/sleep/*.go api/gen/cloudless/v1/*.go))
	CGO_ENABLED=0 GOOS=linux GOARCH=$* go build -tags no_grpc -trimpath -ldflags "-s -w" -o build/cloudless-ingress-$* ./cmd/cloudless-ingress
	gzip -9nc build/cloudless-ingress-$* > $@.tmp
	mv $@.tmp $@

.PHONY: build
build: $(PROGRAMS) ## Build bin/cloudless: one static binary with its programs inside.
	CGO_ENABLED=0 go build $(GOFLAGS_STATIC) -o bin/cloudless ./cmd/cloudless

.PHONY: build-all
build-all: bin/cloudless-linux-amd64 bin/cloudless-linux-arm64 ## Build bin/cloudless-linux-amd64 and -arm64.

# go build itself knows what is up to date, so it always runs. Programs of other architectures are kept for the next time.
.SECONDARY:
bin/cloudless-linux-%: $(EMBEDDED)/%/cloudless-shim.gz $(EMBEDDED)/%/cloudless-net.gz $(EMBEDDED)/%/cloudless-ingress.gz FORCE
	CGO_ENABLED=0 GOOS=linux GOARCH=$* go build $(GOFLAGS_STATIC) -o $@ ./cmd/cloudless

.PHONY: FORCE
FORCE:

.PHONY: up
up: deps build ## Start a one-machine cloud here, run the example app on it and print its URL.
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o build/hello ./examples/hello
	bin/cloudless up --detach $(UP_FLAGS)
	bin/cloudless run ./build/hello --name web --update $(HELLO)
	@for _ in {1..100}; do \
		if (exec 3<>/dev/tcp/127.0.0.1/8080) 2>/dev/null; then echo "the example app answers at http://127.0.0.1:8080"; exit 0; fi; sleep 0.1; \
	done; echo "the example app runs but does not answer at http://127.0.0.1:8080: look at bin/cloudless logs web" >&2; exit 1

.PHONY: demo-ha
demo-ha: deps build ## Show on network namespaces what a cluster of six machines survives (root; DEMO_FLAGS=-yes does not ask).
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o build/hello ./examples/hello
	go build -o build/demo-ha ./examples/demo-ha
	build/demo-ha $(DEMO_FLAGS)

.PHONY: demo-net
demo-net: deps build ## Show on network namespaces how replicas behind two NATs find each other by name (root; DEMO_FLAGS=-yes does not ask).
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o build/shop ./examples/demo-net/shop
	go build -o build/demo-net ./examples/demo-net
	build/demo-net $(DEMO_FLAGS)

.PHONY: lint
lint: $(PROGRAMS) ## Check format, vet, staticcheck, known vulnerabilities and that the generated kinds are current.
	@unformatted="$$($(TOOL) gofumpt -l $$(git ls-files -co --exclude-standard '*.go' | grep -v '^api/gen/'))"; \
	if [ -n "$$unformatted" ]; then echo "not formatted by gofumpt:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	$(TOOL) staticcheck ./...
	@tools/vulncheck.sh $(TOOL) govulncheck
	cd tools && go vet ./... && go test ./...

.PHONY: test
test: test-deps build lint ## Everything that must pass: lint, all tests with -race, end to end as root.
	@$(MAKE) --no-print-directory -j2 test-race test-sim
	@$(MAKE) --no-print-directory test-fuzz

# More at a time than there are cores: most of them wait for elections, containers and each other.
# The stories take longest and wait most, so they begin first, beside everything else.
.PHONY: test-race
test-race:
	go test -race -count=1 -p 3 -parallel 4 -timeout 40m $$(go list ./test/e2e ./... | grep -v '/test/sim$$')

# How often make fuzz executes the targets, all together.
FUZZ_EXECS ?= 10000000
# Targets of small packages, whose builds for fuzzing are quick.
SHORT_FUZZ := ./internal/ingress/http1 ./internal/ingress/proxyproto ./internal/ingress/table ./internal/crontab ./internal/tarcopy ./internal/logfile ./internal/listeners

.PHONY: fuzz
fuzz: ## Try random input on every parser; prints a table and appends to build/bench.jsonl (FUZZ_EXECS=200000 is shorter).
	go run ./test/fuzz -execs $(FUZZ_EXECS)

# The corpora of all targets are part of their packages' tests.
.PHONY: test-fuzz
test-fuzz:
	@go run ./test/fuzz -execs 30000 -record=false $(SHORT_FUZZ)

# How many hours of clusters test-sim simulates: 0 is what make test does.
HOURS ?= 0
# How long test-chaos does harm.
CHAOS ?= 3m
# What test-sim and test-chaos begin with: 0 is a new one, which they print.
SEED ?= 0

# One goroutine: there is nothing to race with.
.PHONY: test-sim
test-sim: ## Simulate clusters on new seeds and check what is promised (HOURS=20000 SEED=7).
	go test -v -count=1 -timeout $(if $(filter-out 0,$(HOURS)),0,20m) ./test/sim -sim.hours $(HOURS) -sim.seed $(SEED)

.PHONY: test-chaos
test-chaos: test-deps build ## Break a cluster at random and check what its clients saw (CHAOS=10m SEED=7).
	go test -race -count=1 -timeout 0 -v ./test/chaos -run TestChaos -length $(CHAOS) -seed $(SEED)

.PHONY: test-short
test-short: $(PROGRAMS) ## What needs neither root nor containers nor several servers, in under two minutes.
	go test -short ./...

# What make coverage measures, and in which tests.
COVERED := ./api,./client/...,./cmd/...,./internal/...
COVERED_TESTS ?= ./...
COVERDATA := $(CURDIR)/build/coverage

# Processes of bin/cloudless that the tests start count as well, unless they are killed: the binary is built with
# counters, which each process writes to GOCOVERDIR when it exits. The usual binary is built again afterwards.
# go test sets GOCOVERDIR to a folder that it deletes, so -exec sets it again.
.PHONY: coverage
coverage: test-deps $(PROGRAMS) ## Run all tests; print how much of the hand-written code they reach (HTML in build/coverage.html).
	rm -rf $(COVERDATA); mkdir -p $(COVERDATA)
	CGO_ENABLED=0 go build -cover -coverpkg=$(COVERED) $(GOFLAGS_STATIC) -o bin/cloudless ./cmd/cloudless
	failed=0; \
	go test -cover -coverpkg=$(COVERED),./docs/... -exec "env GOCOVERDIR=$(COVERDATA)" -count=1 -p 3 -parallel 4 -timeout 30m $(COVERED_TESTS) -args -test.gocoverdir=$(COVERDATA) || failed=1; \
	$(MAKE) --no-print-directory build; \
	go tool covdata textfmt -i=$(COVERDATA) -o build/coverage.txt; \
	go run ./test/coverage -profile build/coverage.txt -least 70 || failed=1; \
	go tool cover -html build/coverage.txt -o build/coverage.html; \
	exit $$failed

.PHONY: bench
bench: test-deps bench-deps build build-all ## Measure; prints a table and appends to build/bench.jsonl.
	go run ./test/bench

# Such as -c2m-nodes 610 -c2m-workloads 100 -c2m-replicas 50000.
C2M_FLAGS ?=

.PHONY: bench-s3
bench-s3: bench-deps build ## Measure the object store beside plain files and versitygw's POSIX backend (root, minutes).
	go run ./test/bench -only s3_put_4k,s3_get_4k,s3_put_1m,s3_get_1m,s3_put_64m,s3_get_64m,s3_put_1m_r3,s3_list_1m,s3_meta,s3_repair,s3_rss

.PHONY: bench-c2m
bench-c2m: test-deps build ## Place two million replicas on 6,100 simulated nodes, and measure (root, 10 GiB, minutes).
	go run ./test/bench -only c2m_seconds,c2m_rss_gb,c2m_snapshot_stall $(C2M_FLAGS)

.PHONY: clean
clean: ## Remove what was built.
	rm -rf bin build $(EMBEDDED)/*/*.gz
