package loadgen

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"larder/internal/loadgen/mockserver"
	"larder/internal/stats"
	"larder/internal/workload"
)

// mockEnv makes this test binary a mock server of another process; its value is the gap between tokens.
const mockEnv = "LARDER_TEST_MOCK_GAP"

func TestMain(m *testing.M) {
	if gap := os.Getenv(mockEnv); gap != "" {
		os.Exit(mockProcess(gap))
	}
	os.Exit(m.Run())
}

// mockProcess serves until its input ends, that is, until its parent does.
func mockProcess(gap string) int {
	d, err := time.ParseDuration(gap)
	if err != nil {
		return 1
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 1
	}
	fmt.Println(l.Addr())
	s := &mockserver.Server{Answer: mockserver.Paced(mockserver.Options{First: 50 * time.Millisecond, Gap: d, Text: "word ", Prompt: 100})}
	go http.Serve(l, s)
	io.Copy(io.Discard, os.Stdin)
	return 0
}

// startMock runs the mock server in a process of its own and returns its URL.
func startMock(b *testing.B, gap time.Duration) string {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), mockEnv+"="+gap.String())
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { in.Close(); cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return "http://" + strings.TrimSpace(line)
}

// serverTiming is what the mock measured since it was last asked.
func serverTiming(b *testing.B, base string) (first, gaps stats.Summary) {
	b.Helper()
	resp, err := http.Get(base + "/mock/timing")
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	var t mockserver.Timing
	if err := json.NewDecoder(resp.Body).Decode(&t); err != nil {
		b.Fatal(err)
	}
	return stats.Summarize("ms", t.First, ""), stats.Summarize("ms", t.Gaps, "")
}

// BenchmarkStreams drains many paced streams from a mock in another process and holds what the client measured
// against what the server did.
func BenchmarkStreams(b *testing.B) {
	for _, c := range []struct {
		streams, tokens, prompt int
		gap, ramp               time.Duration // a ramp of 0 starts all at once, and then all streams tick at once
	}{
		{512, 150, 100, 20 * time.Millisecond, time.Second}, {512, 150, 100, 20 * time.Millisecond, 0},
		{1024, 20, 100, 200 * time.Millisecond, 0}, {4096, 20, 100, 200 * time.Millisecond, time.Second},
		{64, 100, 100_000, 20 * time.Millisecond, 0},
	} {
		b.Run(fmt.Sprintf("streams=%d/prompt=%d/gap=%v/ramp=%v", c.streams, c.prompt, c.gap, c.ramp), func(b *testing.B) {
			base := startMock(b, c.gap)
			items := make([]workload.Item, c.streams)
			ids := make([]int32, c.prompt)
			for i := range items {
				items[i] = workload.Item{IDs: ids, PromptLen: c.prompt, OutputLen: c.tokens, Due: c.ramp * time.Duration(i) / time.Duration(c.streams)}
			}
			for b.Loop() {
				res, err := Run(b.Context(), Config{BaseURL: base, Backend: "sglang", Stream: true}, items)
				if err != nil {
					b.Fatal(err)
				}
				measureStreams(b, base, c.tokens, res)
			}
		})
	}
}

func measureStreams(b *testing.B, base string, tokens int, res *Result) {
	b.Helper()
	var seen, gaps stats.Sample
	events := 0
	for i := range res.Outcomes {
		o := &res.Outcomes[i]
		if !o.OK() {
			b.Fatalf("stream %d: %v", i, o.Err)
		}
		events += len(o.Chunks)
		seen.Add(float64(res.Start.Add(o.First).UnixNano()) / 1e6)
		for k := 1; k < len(o.Chunks); k++ {
			gaps.Add(float64(o.Chunks[k].At-o.Chunks[k-1].At) / 1e6)
		}
	}
	first, paced := serverTiming(b, base)
	sent := slices.MaxFunc(res.Outcomes, func(x, y Outcome) int { return int(x.Wrote - y.Wrote) }).Wrote
	b.ReportMetric(100*float64(events)/float64(tokens*len(res.Outcomes)), "%drained")
	b.ReportMetric(seen.Percentile(50).Or(-1)-first.P50.Or(0), "ttft-p50-over-ms")
	b.ReportMetric(gaps.Percentile(99).Or(-1)-paced.P99.Or(0), "itl-p99-over-ms")
	b.ReportMetric(res.CPU.Seconds()/res.Duration.Seconds(), "cores")
	b.ReportMetric(float64(sent)/1e6, "on-the-wire-ms")
	b.ReportMetric(float64(events)/res.Duration.Seconds(), "events/s")
}

// BenchmarkArrivals checks the pace of an open loop of 2000 requests a second.
func BenchmarkArrivals(b *testing.B) {
	base := startMock(b, time.Millisecond)
	s, err := workload.NewSampler(1)
	if err != nil {
		b.Fatal(err)
	}
	const n, rate = 6000, 2000
	due, err := s.Arrivals(n, rate)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		res, err := Run(b.Context(), Config{BaseURL: base, Backend: "sglang", Stream: true, Due: due}, texts(n, 1))
		if err != nil {
			b.Fatal(err)
		}
		var lag stats.Sample
		var last time.Duration
		for i := range res.Outcomes {
			lag.Add(float64(res.Outcomes[i].Sent-res.Outcomes[i].Due) / 1e6)
			last = max(last, res.Outcomes[i].Sent)
		}
		b.ReportMetric(100*(due[n-1].Seconds()/last.Seconds()-1), "%rate-error")
		b.ReportMetric(lag.Percentile(50).Or(-1), "lag-p50-ms")
		b.ReportMetric(lag.Percentile(99).Or(-1), "lag-p99-ms")
	}
}
