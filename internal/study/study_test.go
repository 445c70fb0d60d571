package study

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"larder/internal/device"
	"larder/internal/record"
)

func small() Config {
	return Config{
		Preset: "test", InputLen: 320, HitRate: 0.9, BatchSizes: []int{4, 2, 1}, OutputLen: 1, NumLayers: 1, Repeats: 3,
		Arms: []string{record.Recompute, record.HostArm, record.HBMArm}, HeldOut: []float64{0.5},
		Decode: []record.DecodeRun{{Requests: 3, OutputLen: 8}, {Requests: 4, Concurrency: 2, OutputLen: 4}}, Seed: 5,
	}
}

// mustEncode writes the record, and sees that no reason of last resort is in it.
func mustEncode(t *testing.T, s *record.Study) {
	t.Helper()
	var b bytes.Buffer
	if err := record.Encode(&b, s); err != nil {
		t.Errorf("the record cannot be written: %v", err)
	}
	if i := bytes.Index(b.Bytes(), []byte(unexplained)); i >= 0 {
		t.Errorf("a number is absent without a reason: %s", b.Bytes()[max(0, i-300):i])
	}
}

func failedCheck(s *record.Study, name string) *record.Check {
	for i := range s.Checks {
		if s.Checks[i].Name == name && !s.Checks[i].OK {
			return &s.Checks[i]
		}
	}
	return nil
}

func TestWholeStudy(t *testing.T) {
	w := newWorld(16)
	s, err := Run(context.Background(), small(), w.env())
	if err != nil {
		t.Fatal(err)
	}
	if !s.OK() || len(s.Rows) != 27 || len(s.Decode) != 2 || len(s.HeldOut) != 2 || len(s.Comparisons) != 18 {
		t.Fatalf("ok %v, %d rows, %d decode, %d held out, %d comparisons; %v", s.OK(), len(s.Rows), len(s.Decode), len(s.HeldOut), len(s.Comparisons), s.FailedChecks())
	}
	for _, name := range checkOrder {
		if name == checkKV {
			continue // there are no KV rows here
		}
		if !slices.ContainsFunc(s.Checks, func(c record.Check) bool { return c.Name == name && c.OK }) {
			t.Errorf("check %q is missing", name)
		}
	}
	for _, r := range s.Rows {
		want := record.Tokens{}
		switch r.Arm {
		case record.HostArm:
			want.Host = 288 * r.Batch
		case record.HBMArm:
			want.Device = 288 * r.Batch
		}
		if r.Cached != want || r.Computed != 320*r.Batch-want.Host-want.Device || r.InputTokens != 320*r.Batch || r.OutputTokens != r.Batch {
			t.Errorf("%s batch %d: cached %+v, computed %d", r.Arm, r.Batch, r.Cached, r.Computed)
		}
		if r.TPOT.Mean.OK() || r.TPOT.Mean.Why() == "" {
			t.Errorf("one output token has a TPOT: %+v", r.TPOT)
		}
		sum := r.Split.Queue.Or(-1) + r.Split.Load.Or(-1) + r.Split.Compute.Or(-1) + r.Split.Outside.Or(-1)
		if d := sum - r.TTFT.Mean.Or(0); d > 1e-6 || d < -1e-6 {
			t.Errorf("the parts of TTFT sum to %v, not %v", sum, r.TTFT.Mean)
		}
		if share := r.Share.Or(-1); share <= 0 || share > 1 {
			t.Errorf("%s batch %d: share %v", r.Arm, r.Batch, share)
		}
	}
	if got := s.Decode[0].TPOT.Mean.Or(0); got < 5 || got > 5.2 {
		t.Errorf("TPOT %v, the world makes a token each 5 ms", got)
	}
	checkConclusions(t, s)
	mustEncode(t, s)
	if len(s.BreakEven.Map) != 15 {
		t.Errorf("the map has %d cells", len(s.BreakEven.Map))
	}
	for _, c := range s.BreakEven.Map {
		if c.HBMS > c.HostS || c.HostS >= c.RecomputeS {
			t.Errorf("in this world a hit always pays: %+v", c)
		}
	}
}

// checkConclusions: in this world recompute takes 9.6 times the tokens of a hit.
func checkConclusions(t *testing.T, s *record.Study) {
	t.Helper()
	for _, c := range s.Comparisons {
		if c.B == record.Recompute && c.Verdict != record.VerdictA {
			t.Errorf("%s", c.Sentence)
		}
		if c.Speedup.N != 3 || !c.Speedup.Lo.OK() {
			t.Errorf("interval of %s: %+v", c.Sentence, c.Speedup)
		}
	}
	b := s.BreakEven
	if r := b.RecomputePerS.Or(0); r < 2300 || r > 2700 {
		t.Errorf("R = %v, the world recomputes 2,500 tokens a second", r)
	}
	if n := b.PrefixTokens.Or(0); n != 16 {
		t.Errorf("n* = %v, want one block: loading costs next to nothing here", n)
	}
	if b.Batch.Or(0) != 1 || b.NeedBytesPerS.Or(0) != b.RecomputePerS.Or(0)*2048 {
		t.Errorf("batch %v, B* %v", b.Batch, b.NeedBytesPerS)
	}
	if e := b.Fit.MeanError.Or(1); e > 0.1 || b.Fit.Points != 27 || len(b.Fit.HeldOut) != 11 {
		t.Errorf("fit: %+v", b.Fit)
	}
}

// Each arm has each place once in three repeats, and all arms of a repeat send the same ids.
func TestLatinOrder(t *testing.T) {
	w := newWorld(16)
	s, err := Run(context.Background(), small(), w.env())
	if err != nil {
		t.Fatal(err)
	}
	places := map[string]map[int]bool{}
	for _, r := range s.Rows {
		if places[r.Arm] == nil {
			places[r.Arm] = map[int]bool{}
		}
		places[r.Arm][r.Position] = true
		if s.Workload.Order[r.Repeat][r.Position] != r.Arm {
			t.Errorf("repeat %d place %d: %s, recorded %v", r.Repeat, r.Position, r.Arm, s.Workload.Order[r.Repeat])
		}
	}
	for arm, p := range places {
		if len(p) != 3 {
			t.Errorf("%s had places %v", arm, p)
		}
	}
}

// Turns at each batch size: the same rows, each arm in each place as often, and the plan knows the extra priming.
func TestInterleaveByBatch(t *testing.T) {
	c := small()
	c.Interleave = "batch"
	w := newWorld(16)
	env, l := w.env(), &lastUpdate{}
	env.Progress = l
	s, err := Run(context.Background(), c, env)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Rows) != 27 || len(s.Workload.Order) != 9 {
		t.Fatalf("%d rows in %d turns", len(s.Rows), len(s.Workload.Order))
	}
	places := map[string]int{}
	for i, r := range s.Rows {
		places[fmt.Sprint(r.Arm, r.Position)]++
		if s.Workload.Order[i/3][r.Position] != r.Arm || r.Batch != c.BatchSizes[i/3%3] {
			t.Errorf("row %d: %s batch %d at place %d", i, r.Arm, r.Batch, r.Position)
		}
	}
	for at, n := range places {
		if n != 3 {
			t.Errorf("%s %d times", at, n)
		}
	}
	if before := l.u[len(l.u)-2]; before.Fraction < 0.98 {
		t.Errorf("the last phase ended at %v of the predicted work", before.Fraction)
	}
}

// Every fault must turn its own check red, and no fault may pass.
func TestFaultsAreNamed(t *testing.T) {
	for fault, check := range map[string]string{
		"misplace":    checkPlaced,
		"leak":        checkPlaced,
		"invariant":   checkInvariants,
		"short load":  checkBytes,
		"wrong token": checkTokens,
		"silent":      checkProven,
		"lost chunk":  checkITL,
		"refuse":      checkSucceeded,
	} {
		t.Run(fault, func(t *testing.T) {
			w := newWorld(16)
			w.fault = fault
			s, err := Run(context.Background(), small(), w.env())
			if fault == "refuse" && err != nil && !errors.Is(err, ErrChecks) {
				// A refused priming request ends the study: nothing after it could be proven.
				if s == nil || s.Complete || s.Stopped == "" || !strings.Contains(err.Error(), "503") {
					t.Fatalf("%v, record %+v", err, s)
				}
				return
			}
			if !errors.Is(err, ErrChecks) || !strings.Contains(err.Error(), check) {
				t.Fatalf("error %v does not name %q", err, check)
			}
			c := failedCheck(s, check)
			if c == nil || !s.Complete || !strings.Contains(c.Detail, ":") {
				t.Errorf("check %+v, complete %v", c, s.Complete)
			}
			mustEncode(t, s)
		})
	}
}

// Interrupted: what was measured is kept, marked incomplete, and can be written.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	w := newWorld(16)
	w.stop, w.stopAt = cancel, 12
	s, err := Run(ctx, small(), w.env())
	if !errors.Is(err, context.Canceled) || s == nil || s.Complete || s.Stopped == "" {
		t.Fatalf("%v, %+v", err, s)
	}
	if len(s.Rows) == 0 || len(s.Rows) >= 27 {
		t.Errorf("%d rows kept", len(s.Rows))
	}
	mustEncode(t, s)
}

// Other ways to share: one prefix for all, and groups. Without salts the recompute arm would hit itself.
func TestSharedPrefixes(t *testing.T) {
	for _, prefixes := range []string{"one", "2"} {
		c := small()
		c.Prefixes = prefixes
		s, err := Run(context.Background(), c, newWorld(16).env())
		if err != nil {
			t.Fatalf("%s: %v", prefixes, err)
		}
		for _, r := range s.Rows {
			if r.Arm == record.Recompute && r.Computed != 320*r.Batch {
				t.Errorf("%s: recompute batch %d computed %d tokens", prefixes, r.Batch, r.Computed)
			}
		}
	}
}

// A study of some arms says what it cannot say.
func TestSomeArms(t *testing.T) {
	for _, arms := range [][]string{{record.Recompute}, {record.HostArm, record.HBMArm}, {record.HBMArm, record.Recompute}} {
		c := small()
		c.Arms = arms
		w := newWorld(16)
		s, err := Run(context.Background(), c, w.env())
		if err != nil {
			t.Fatalf("%v: %v", arms, err)
		}
		if len(s.Rows) != 9*len(arms) || s.BreakEven.PrefixTokens.OK() || s.BreakEven.PrefixTokens.Why() == "" || s.BreakEven.Verdict == "" {
			t.Errorf("%v: %d rows, break-even %+v", arms, len(s.Rows), s.BreakEven.PrefixTokens)
		}
		mustEncode(t, s)
	}
}

// A link that is slower than recomputing: the verdict says so.
func TestRecomputeCanWin(t *testing.T) {
	w := newWorld(16)
	w.link = 2e6 // 2 KiB a token: a thousand tokens a second, recomputing makes 2,500
	env := w.env()
	for i := range env.Ceilings {
		if env.Ceilings[i].Name == device.CeilingHostToDev {
			env.Ceilings[i].Value = w.link
		}
	}
	s, err := Run(context.Background(), small(), env)
	if err != nil {
		t.Fatal(err)
	}
	if b := s.BreakEven; b.PrefixTokens.OK() || b.Margin.Or(9) > 0.5 || !strings.Contains(b.Verdict, "Recomputing beats loading") {
		t.Errorf("%+v: %s", b.Margin, b.Verdict)
	}
	for _, c := range s.Comparisons {
		if c.A == record.HostArm && c.B == record.Recompute && c.Verdict != record.VerdictB {
			t.Errorf("%s", c.Sentence)
		}
	}
	if s.BreakEven.Batch.OK() {
		t.Errorf("loading won from batch %v on", s.BreakEven.Batch)
	}
}

// One repeat: no interval, no winner, and the reason is written down.
func TestOneRepeat(t *testing.T) {
	c := small()
	c.Repeats, c.OutputLen = 1, 4
	s, err := Run(context.Background(), c, newWorld(16).env())
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range s.Comparisons {
		if x.Verdict != record.VerdictNone || x.Speedup.Lo.OK() || x.Speedup.Lo.Why() == "" {
			t.Errorf("%+v", x)
		}
	}
	if s.BreakEven.Batch.OK() || s.BreakEven.Fit.FixedS.OK() {
		t.Errorf("break-even batch %v, fit %+v", s.BreakEven.Batch, s.BreakEven.Fit)
	}
	mustEncode(t, s)
}

// Without the tap and the roofline there are reasons instead of numbers.
func TestBareEnv(t *testing.T) {
	w := newWorld(16)
	env := w.env()
	env.Tap, env.Roofline = nil, nil
	s, err := Run(context.Background(), small(), env)
	if err != nil {
		t.Fatal(err)
	}
	if r := s.Rows[0]; r.Split.Load.Why() == "" || r.LimitS.Why() == "" {
		t.Errorf("%+v %+v", r.Split, r.LimitS)
	}
	mustEncode(t, s)
}

type lastUpdate struct {
	u     []Update
	order bool
}

func (l *lastUpdate) Update(u Update) {
	if n := len(l.u); n > 0 && u.Fraction < l.u[n-1].Fraction-1e-9 {
		l.order = true
	}
	l.u = append(l.u, u)
}

func TestProgress(t *testing.T) {
	w := newWorld(16)
	env, l := w.env(), &lastUpdate{}
	env.Progress = l
	if _, err := Run(context.Background(), small(), env); err != nil {
		t.Fatal(err)
	}
	end := l.u[len(l.u)-1]
	if l.order || end.Fraction != 1 || end.ETA != 0 || end.Phase != "done" {
		t.Errorf("went back: %v, end %+v", l.order, end)
	}
	before := l.u[len(l.u)-2]
	if before.Fraction < 0.98 || before.Fraction > 1 {
		t.Errorf("the last phase ended at %v of the predicted work: the plan forgets some", before.Fraction)
	}
}

func TestRefusals(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"hit rate":    func(c *Config) { c.HitRate = 1 },
		"batch sizes": func(c *Config) { c.BatchSizes = nil },
		"twice":       func(c *Config) { c.BatchSizes = []int{2, 2} },
		"arms":        func(c *Config) { c.Arms = []string{"disk"} },
		"prefixes":    func(c *Config) { c.Prefixes = "some" },
		"repeats":     func(c *Config) { c.Repeats = 0 },
		"block":       func(c *Config) { c.InputLen, c.HitRate = 40, 0.1 },
		"decode run":  func(c *Config) { c.Decode = []record.DecodeRun{{Requests: 1, OutputLen: 1}} },
	} {
		c := small()
		change(&c)
		if _, err := Run(context.Background(), c, newWorld(16).env()); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w := newWorld(16)
	w.stats.Tiers[1].Total = 3
	if _, err := Run(context.Background(), small(), w.env()); err == nil || !strings.Contains(err.Error(), "host tier has 3 blocks") {
		t.Errorf("a small tier: %v", err)
	}
}

func TestPresets(t *testing.T) {
	for name, shared := range map[string]int{"smoke": 576, "quick": 2304, "seed": 9216} {
		c, err := Preset(name)
		if err != nil || c.Validate() != nil {
			t.Fatalf("%s: %v, %v", name, err, c.Validate())
		}
		if got := c.SharedLen(c.HitRate, 64); got != shared {
			t.Errorf("%s shares %d tokens, want %d", name, got, shared)
		}
	}
	if _, err := Preset("huge"); err == nil {
		t.Error("an unknown preset passed")
	}
}
