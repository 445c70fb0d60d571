package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"larder/internal/record"
)

// announced is a log that tells the address once it is written.
type announced struct {
	mu   sync.Mutex
	text bytes.Buffer
	url  chan string
	once sync.Once
}

var servingLine = regexp.MustCompile(`serving \S+ on (http://\S+)`)

func (a *announced) Write(b []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n, err := a.text.Write(b)
	if m := servingLine.FindStringSubmatch(a.text.String()); m != nil {
		a.once.Do(func() { a.url <- m[1] })
	}
	return n, err
}

// serveTiny runs `larder serve` with a device tier so small that filler evicts it.
func serveTiny(t *testing.T, args ...string) (url string) {
	t.Helper()
	log := &announced{url: make(chan string, 1)}
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	c := &serveCmd{engineFlags: engineFlags{ModelPath: "tiny", LoadFormat: "auto", Device: "cpu", DType: "auto", Kernels: "auto", MemFraction: 0.5, PageSize: 16, MaxTotalTokens: 1024,
		MaxRunning: 32, MaxQueued: 256, SchedulePolicy: "fcfs", HicacheRatio: 4, HicacheWrite: "write_through", Eviction: "lru", Seed: 1}, Host: "127.0.0.1"}
	for _, a := range args {
		switch a {
		case "hierarchical":
			c.Hierarchical = true
		case "metrics":
			c.EnableMetrics = true
		case "key":
			c.APIKey = "secret"
		}
	}
	failed := make(chan error, 1)
	go func() {
		defer close(done)
		if err := c.Run(ctx, &streams{io.Discard, log}); err != nil {
			failed <- err
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	select {
	case url = <-log.url:
	case err := <-failed:
		t.Fatal(err)
	}
	return url
}

func studyServer(t *testing.T, args ...string) (code int, out, log string, rec *record.Study) {
	t.Helper()
	dir := t.TempDir()
	var o, e bytes.Buffer
	code = run(append([]string{"study", "--out", dir, "--input-len", "192", "--hit-rate", "0.67", "--batch-sizes", "2,1", "--repeats", "2", "--no-decode", "--settle", "0s"}, args...), &streams{&o, &e})
	if f, err := os.Open(filepath.Join(dir, "study.json")); err == nil {
		defer f.Close()
		if rec, err = record.Decode(f); err != nil {
			t.Fatal(err)
		}
	}
	return code, o.String(), e.String(), rec
}

// The study brings all arms about on a real server through its API alone, and proves them.
func TestStudyServer(t *testing.T) {
	url := serveTiny(t, "hierarchical", "metrics", "key")
	code, out, log, rec := studyServer(t, "--server", url, "--backend", "larder", "--api-key", "secret")
	if code != exitOK || rec == nil || !rec.OK() || len(rec.LeftOut) != 0 {
		t.Fatalf("code %d\n%s\n%s\n%+v", code, out, log, rec)
	}
	arms := map[string]int{}
	for i := range rec.Rows {
		r := &rec.Rows[i]
		arms[r.Arm]++
		if want := map[string]record.Tokens{record.HostArm: {Host: 128 * r.Batch}, record.HBMArm: {Device: 128 * r.Batch}}[r.Arm]; r.Cached != want {
			t.Errorf("%s batch %d: cached %+v, want %+v", r.Arm, r.Batch, r.Cached, want)
		}
		if r.Arm == record.HostArm && r.LoadedBytes.Or(0) == 0 {
			t.Errorf("nothing was loaded in the host arm, by the server's counters: %v", r.LoadedBytes)
		}
	}
	if arms[record.Recompute] != 4 || arms[record.HostArm] != 4 || arms[record.HBMArm] != 4 || !strings.Contains(out, "Host memory") || rec.Model.TokenBytes == 0 {
		t.Errorf("%v, %d bytes a token\n%s", arms, rec.Model.TokenBytes, out)
	}
	if code, _, log, _ := studyServer(t, "--server", url, "--backend", "larder", "--api-key", "wrong"); code != exitFailed || !strings.Contains(log, "401") {
		t.Errorf("code %d %s", code, log)
	}
}

// Without a host tier and without metrics, the host arm is named and left out.
func TestStudyServerWithoutHostTier(t *testing.T) {
	url := serveTiny(t)
	code, out, log, rec := studyServer(t, "--server", url, "--backend", "sglang")
	if code != exitOK || rec == nil || len(rec.LeftOut) != 1 || rec.LeftOut[0].Arm != record.HostArm || !strings.Contains(out, "Left out, because not proven: loading from host memory: after 1,126 tokens of filler") {
		t.Errorf("code %d\n%s\n%s", code, out, log)
	}
}

func TestStudyServerRefusals(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--server", "nowhere"}, exitUsage, "must be http://host:port"},
		{[]string{"--server", "http://127.0.0.1:1", "--model-path", "tiny"}, exitUsage, "--model-path is a flag of the study's own server"},
		{[]string{"--server", "http://127.0.0.1:1", "--interleave", "repeat"}, exitUsage, "--interleave repeat"},
		{[]string{"--server", "http://127.0.0.1:1", "--filler-tokens=-4"}, exitUsage, "must not be negative"},
		{[]string{"--server", "http://127.0.0.1:1", "--backend", "tgi"}, exitUsage, "tgi"},
	} {
		code, _, log, rec := studyServer(t, c.args...)
		if code != c.code || rec != nil || !strings.Contains(log, c.want) || strings.Count(log, "\n") != 1 {
			t.Errorf("%v: code %d %q", c.args, code, log)
		}
	}
}
