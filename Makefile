# Everything that people and CI do with this repository. Start with: make help

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
GOFLAGS_STATIC := -trimpath -ldflags "-s -w -X main.version=$(VERSION)"
SHIM := internal/driver/containerd/shim/embedded/cloudless-shim.gz
TOOL := go tool -modfile=$(CURDIR)/tools/go.mod
# What a test needs from the distribution, as command=package.
NEEDS := runc=runc ip=iproute2 busybox=busybox-static containerd=containerd gcc=gcc curl=curl skopeo=skopeo

.PHONY: help
help: ## Show this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

.PHONY: deps
deps: ## Install what is missing: runc to run, the rest to test (apt, as root).
	@missing=(); for need in $(NEEDS); do command -v $${need%%=*} >/dev/null || missing+=($${need##*=}); done; \
	[ -e /usr/include/stdio.h ] || missing+=(libc6-dev); \
	if [ $${#missing[@]} -gt 0 ]; then \
		echo "installing $${missing[*]}"; \
		apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$${missing[@]}" >/dev/null; \
	fi

.PHONY: generate
generate: ## Make api/gen from the .proto files.
	cd tools && go run ./gen -root ..

.PHONY: shim
shim: $(SHIM) ## Build the shim that is embedded in cloudless.

# The shim runs once per container, so it is built without gRPC and stripped.
$(SHIM): go.mod go.sum $(filter-out %_test.go,$(wildcard cmd/cloudless-shim/*.go internal/logfile/*.go))
	CGO_ENABLED=0 go build -tags no_grpc -trimpath -ldflags "-s -w" -o build/cloudless-shim ./cmd/cloudless-shim
	gzip -9nc build/cloudless-shim > $@.tmp
	mv $@.tmp $@

.PHONY: build
build: $(SHIM) ## Build bin/cloudless: one static binary with the shim inside.
	CGO_ENABLED=0 go build $(GOFLAGS_STATIC) -o bin/cloudless ./cmd/cloudless

.PHONY: up
up: deps build ## Start a one-machine cloud here.
	bin/cloudless up --detach

.PHONY: lint
lint: $(SHIM) ## Check format, vet and staticcheck.
	@unformatted="$$($(TOOL) gofumpt -l $$(git ls-files -co --exclude-standard '*.go' | grep -v '^api/gen/'))"; \
	if [ -n "$$unformatted" ]; then echo "not formatted by gofumpt:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	$(TOOL) staticcheck ./...
	cd tools && go vet ./...

.PHONY: test
test: deps build lint ## Everything that must pass: lint, all tests with -race, end to end as root.
	go test -race -timeout 20m ./...

.PHONY: test-short
test-short: $(SHIM) ## The tests that need neither root nor containers, in under two minutes.
	go test -short ./...

.PHONY: bench
bench: deps build build-all ## Measure; prints a table and appends to build/bench.jsonl.
	go run ./test/bench

.PHONY: clean
clean: ## Remove what was built.
	rm -rf bin build $(SHIM)
