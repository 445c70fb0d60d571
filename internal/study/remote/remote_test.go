package remote

import (
	"bytes"
	"context"
	"errors"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"larder/internal/loadgen"
	"larder/internal/loadgen/scrape"
	"larder/internal/record"
	"larder/internal/study"
	"larder/internal/workload"
)

func config() study.Config {
	return study.Config{Preset: "test", InputLen: 320, HitRate: 0.8, BatchSizes: []int{4, 2}, OutputLen: 1, Repeats: 3, Arms: []string{record.Recompute, record.HostArm, record.HBMArm},
		HeldOut: []float64{0.5}, Decode: []record.DecodeRun{{Requests: 3, OutputLen: 4}}, Seed: 1, Salt: 99}
}

// against runs the study against a fake.
func against(t *testing.T, f *fake, change func(*study.Config, *Env)) (*record.Study, error) {
	t.Helper()
	web := httptest.NewServer(f.server())
	defer web.Close()
	load := loadgen.Config{BaseURL: web.URL, Backend: "sglang", Model: "m"}
	if f.kind == "vllm" {
		load.Backend = "vllm"
	}
	control, err := loadgen.NewControl(load)
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	counters := scrape.New(web.URL, nil)
	defer counters.Close()
	cfg := config()
	env := Env{Load: load, Driver: loadgen.Run, Control: control, Counters: counters, Tool: "larder test", Server: f.kind, Model: "m", VocabLow: 10, VocabHigh: 5000}
	if change != nil {
		change(&cfg, &env)
	}
	s, err := Run(context.Background(), cfg, env)
	if s != nil {
		var b bytes.Buffer
		if err := record.Encode(&b, s); err != nil {
			t.Errorf("the record can not be written: %v", err)
		} else if _, err := record.Decode(&b); err != nil {
			t.Errorf("the record can not be read: %v", err)
		}
	}
	return s, err
}

// kept counts the rows of each arm.
func kept(s *record.Study) map[string]int {
	n := map[string]int{}
	for i := range s.Rows {
		n[s.Rows[i].Arm]++
	}
	return n
}

// Both forms of server bring about and prove all arms, with and without a way to empty the cache, with tiers in the
// answers, in the counters, or with counters alone.
func TestAllArms(t *testing.T) {
	for _, c := range []struct{ kind, fault, note string }{
		{"sglang", "", "proven by answers by tier"},
		{"vllm", "", "proven by answers, and counters for the tier"},
		{"sglang", "no flush", "The server's cache can not be emptied (POST"},
		{"vllm", "no flush", "404"},
		{"vllm", "flush of the device", "had 256 tokens of an old prompt"},
		{"vllm", "silent", "proven by counters."},
		{"sglang", "silent", "proven by counters."},
		{"sglang", "no metrics", "proven by answers by tier"},
	} {
		s, err := against(t, &fake{kind: c.kind, fault: c.fault, host: true, most: 512, device: map[string]int{}, below: map[string]bool{}}, func(cfg *study.Config, e *Env) {
			if c.fault == "no metrics" {
				e.Capacity = 512 * fakeBlock
			}
		})
		if err != nil {
			t.Errorf("%s %s: %v\n%+v", c.kind, c.fault, err, s)
			continue
		}
		if n := kept(s); n[record.Recompute] != 6 || n[record.HostArm] != 6 || n[record.HBMArm] != 6 || len(s.HeldOut) != 2 || len(s.Decode) != 1 || len(s.LeftOut) != 0 {
			t.Errorf("%s %s: rows %v, held out %d, decode %d, left out %v", c.kind, c.fault, n, len(s.HeldOut), len(s.Decode), s.LeftOut)
		}
		for i := range s.Rows {
			want := map[string]record.Tokens{record.HostArm: {Host: 256 * s.Rows[i].Batch}, record.HBMArm: {Device: 256 * s.Rows[i].Batch}}[s.Rows[i].Arm]
			if s.Rows[i].Cached != want || s.Rows[i].Computed != s.Rows[i].InputTokens-want.Device-want.Host {
				t.Errorf("%s %s: %s cached %+v", c.kind, c.fault, s.Rows[i].Arm, s.Rows[i].Cached)
			}
		}
		if notes := strings.Join(s.Notes, "\n"); !strings.Contains(notes, c.note) || len(s.Comparisons) != 12 || !s.OK() || s.BreakEven.Verdict == "" {
			t.Errorf("%s %s: %d comparisons, checks %+v, break-even %q\n%s", c.kind, c.fault, len(s.Comparisons), s.Checks, s.BreakEven.Verdict, notes)
		}
	}
}

// What can not be proven is left out, with the reason.
func TestLeftOut(t *testing.T) {
	for _, c := range []struct {
		kind, fault string
		host        bool
		arms        []string // that remain
		reasons     []string
		err         error
	}{
		{"sglang", "", false, []string{record.Recompute, record.HBMArm}, []string{"host", "0 tokens were cached instead of 256"}, nil},
		{"vllm", "", false, []string{record.Recompute, record.HBMArm}, []string{"host", "0 tokens were cached instead of 256"}, nil},
		{"sglang", "host as device", true, []string{record.Recompute, record.HBMArm}, []string{"0 of 256 cached tokens came from the host, 256 from the device"}, nil},
		{"sglang", "always cached", true, nil, []string{"recompute", "320 tokens were cached instead of none", "counters of /metrics moved by"}, ErrUnproven},
		{"sglang", "no capacity", true, []string{record.Recompute, record.HBMArm}, []string{"--filler-tokens"}, nil},
		{"vllm", "no metrics", true, []string{record.Recompute}, []string{"the answers do not say which tier cached tokens came from, and GET /metrics: 404 Not Found"}, ErrUnproven},
	} {
		f := newFake(c.kind)
		f.fault, f.host = c.fault, c.host
		s, err := against(t, f, nil)
		if !errors.Is(err, c.err) || s == nil {
			t.Errorf("%s %s: %v", c.kind, c.fault, err)
			continue
		}
		for _, arm := range []string{record.Recompute, record.HostArm, record.HBMArm} {
			if got := kept(s)[arm] > 0; got != slices.Contains(c.arms, arm) {
				t.Errorf("%s %s: %s kept: %v", c.kind, c.fault, arm, got)
			}
		}
		var text []string
		for _, l := range s.LeftOut {
			text = append(text, l.Arm+" "+l.Reason)
		}
		for _, want := range c.reasons {
			if !strings.Contains(strings.Join(text, "\n"), want) {
				t.Errorf("%s %s: no %q in %q", c.kind, c.fault, want, text)
			}
		}
	}
}

func TestNothingCanBeProven(t *testing.T) {
	f := newFake("vllm")
	f.fault = "silent, no metrics"
	if s, err := against(t, f, nil); s != nil || err == nil || !strings.Contains(err.Error(), "no arm can be proven: the answers do not name cached tokens, and GET /metrics: 404 Not Found") {
		t.Errorf("%v", err)
	}
	f = newFake("sglang")
	f.fault = "text only"
	if s, err := against(t, f, nil); s != nil || err == nil || !strings.Contains(err.Error(), "does not take the study's prompts") || !strings.Contains(err.Error(), "token ids are not taken") {
		t.Errorf("%v", err)
	}
}

// A server that dies ends the study; what was measured is kept and marked.
func TestDies(t *testing.T) {
	f := newFake("sglang")
	f.fault = "dies"
	s, err := against(t, f, nil)
	if err == nil || s == nil || s.Complete || !strings.Contains(err.Error(), "unexpected EOF") || s.Stopped != err.Error() {
		t.Errorf("%v %+v", err, s)
	}
}

// Wrong KV shows as other answers.
func TestWrongAnswers(t *testing.T) {
	f := newFake("sglang")
	f.fault = "wrong"
	s, err := against(t, f, nil)
	if !errors.Is(err, study.ErrChecks) || !slices.Contains(s.FailedChecks(), checkTokens) {
		t.Errorf("%v %+v", err, s.Checks)
	}
}

func TestRefuses(t *testing.T) {
	for _, change := range []func(*study.Config, *Env){
		func(c *study.Config, _ *Env) { c.Prefixes = "one" },
		func(c *study.Config, _ *Env) { c.HitRate = 0.1 },
		func(c *study.Config, _ *Env) { c.Repeats = 0 },
		func(_ *study.Config, e *Env) { e.Driver = nil },
		func(_ *study.Config, e *Env) { e.VocabHigh = 11 },
	} {
		if s, err := against(t, newFake("sglang"), change); err == nil || s != nil {
			t.Errorf("%v", err)
		}
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	n := 0
	s, err := against(t, newFake("sglang"), func(_ *study.Config, e *Env) {
		send := e.Driver
		e.Driver = func(_ context.Context, cfg loadgen.Config, items []workload.Item) (*loadgen.Result, error) {
			if n++; n == 30 {
				cancel()
			}
			return send(ctx, cfg, items)
		}
	})
	if err == nil || s == nil || s.Complete {
		t.Errorf("%v %+v", err, s)
	}
}
