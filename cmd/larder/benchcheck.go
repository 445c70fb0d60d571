package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"

	"larder/internal/loadgen"
	"larder/internal/loadgen/mockserver"
	"larder/internal/workload"
)

// selfCheckTokens is how many tokens each stream of the self-check gets, as fast as they can be read.
const selfCheckTokens = 400

// selfCheck drains as many streams as the run will have from a mock server in this process, and prints how many
// events a second that makes: a floor for what this client can take here, since the mock uses the same cores.
func (c *benchCmd) selfCheck(ctx context.Context, items int, log io.Writer) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("self-check: %w", err)
	}
	srv := &http.Server{Handler: &mockserver.Server{Answer: mockserver.Paced(mockserver.Options{Text: "word "})}}
	stopped := make(chan error, 1)
	go func() { stopped <- srv.Serve(l) }()
	defer func() { srv.Close(); <-stopped }()

	streams := items
	if c.Concurrency > 0 {
		streams = min(streams, c.Concurrency)
	}
	warm := make([]workload.Item, streams)
	for i := range warm {
		warm[i] = workload.Item{Text: "self-check", PromptLen: 1, OutputLen: selfCheckTokens}
	}
	res, err := loadgen.Run(ctx, loadgen.Config{BaseURL: "http://" + l.Addr().String(), Backend: "sglang-oai", Stream: true, NoUsage: true}, warm)
	if err != nil {
		return fmt.Errorf("self-check: %w", err)
	}
	events := 0
	for i := range res.Outcomes {
		if o := &res.Outcomes[i]; !o.OK() {
			return fmt.Errorf("self-check: %d streams at once do not work on this machine: %w", streams, o.Err)
		}
		events += len(res.Outcomes[i].Chunks)
	}
	fmt.Fprintf(log, "self-check: %d streams, %.0f events/s with the mock server on the same %d cores; a server that sends more is measured by this client's limit\n",
		streams, float64(events)/res.Duration.Seconds(), runtime.GOMAXPROCS(0))
	return nil
}
