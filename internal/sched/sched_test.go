package sched

import (
	"fmt"
	"strings"
	"testing"

	"larder/internal/infer"
)

// finishOne computes until a sequence ends and returns its id.
func (w *world) finishOne() string {
	for range 1000 {
		step := w.s.Next(w.now())
		if step != nil {
			if err := w.s.Done(make([]int32, step.DrawnSequences), w.now()); err != nil {
				w.t.Fatal(err)
			}
		}
		for _, o := range w.s.Outputs() {
			if o.Finish != infer.NotFinished {
				return o.Seq.req.ID
			}
		}
		if step == nil {
			w.t.Fatal("nothing to compute and nothing ended")
		}
	}
	w.t.Fatal("no sequence ends")
	return ""
}

func newWorld(t *testing.T, config string) *world {
	w := &world{t: t, seqs: map[string]*Seq{}}
	w.create(options(strings.Fields(config)))
	return w
}

func TestLPMStarvesNobody(t *testing.T) {
	w := newWorld(t, "policy=lpm running=1 device=64 chunk=64 queued=100")
	var refused strings.Builder
	w.add(&refused, "first", "1-32", options([]string{"max=1"}))
	w.finishOne()
	w.add(&refused, "lonely", "201-210", options([]string{"max=1"}))
	for i := range 3 * maxOvertaken {
		w.add(&refused, fmt.Sprint("hit", i), fmt.Sprintf("1-32,%d", 400+i), options([]string{"max=1"}))
		w.add(&refused, fmt.Sprint("hot", i), fmt.Sprintf("1-32,%d", 500+i), options([]string{"max=1"}))
		id := w.finishOne()
		switch {
		case id == "lonely" && i < maxOvertaken:
			t.Fatalf("admitted after %d others: longer prefixes should have gone first", i)
		case id == "lonely":
			return
		case i > maxOvertaken:
			t.Fatalf("%s went before the lonely one, which %d others have overtaken", id, i)
		}
	}
	t.Fatal("the lonely one starved", refused.String())
}

// TestHoldIsBounded: one whose holders vanish goes its own way.
func TestHoldIsBounded(t *testing.T) {
	w := newWorld(t, "running=8 device=256 chunk=8 queued=20")
	var b strings.Builder
	w.add(&b, "held", "1-64,900", nil)
	held := w.seqs["held"]
	for i := range maxHolders + 2 {
		held.hold.by = nil
		name := fmt.Sprint("holder", i)
		q := NewSeq(&infer.Request{ID: name, Tokens: append(held.tokens[:64:64], int32(700+i)), MaxNew: 1}, nil, w.now())
		q.arrival = 0 // it came first, so it is admitted first
		w.s.waiting = append([]*Seq{q}, w.s.waiting...)
		w.s.Admit(w.now())
		if (held.lease == nil) != (i < maxHolders) {
			t.Fatalf("after %d holders: lease %v, hold %+v", i+1, held.lease, held.hold)
		}
		if held.lease != nil {
			return
		}
		w.s.end(q, infer.FinishAbort, -1, nil, w.now())
	}
}

// TestSteadyDecodeAllocatesNothing looks at steps within a block; a new block costs the cache an entry.
func TestSteadyDecodeAllocatesNothing(t *testing.T) {
	w := newWorld(t, "block=1024 running=8 device=64 chunk=64")
	var b strings.Builder
	for i := range 8 {
		w.add(&b, fmt.Sprint(i), fmt.Sprintf("%d-%d", 100*i, 100*i+3), options([]string{"max=1000"}))
	}
	tokens := make([]int32, 8)
	step := func() {
		if step := w.s.Next(w.now()); step == nil || w.s.Done(tokens, w.now()) != nil {
			t.Fatal("the step failed")
		}
		w.s.Outputs()
	}
	step()
	step()
	if n := testing.AllocsPerRun(200, step); n != 0 {
		t.Errorf("%v allocations per step of 8 decoding sequences", n)
	}
	if b.Len() > 0 {
		t.Error(b.String())
	}
}

func TestParsePolicy(t *testing.T) {
	for name, want := range map[string]Policy{"fcfs": FCFS, "lpm": LPM} {
		if got, err := ParsePolicy(name); err != nil || got != want {
			t.Errorf("%s: %d, %v", name, got, err)
		}
	}
	if _, err := ParsePolicy("random"); err == nil {
		t.Error("an unknown policy was accepted")
	}
}

// TestCheckFires breaks each list and account once: a check that cannot fail checks nothing.
func TestCheckFires(t *testing.T) {
	for name, damage := range map[string]func(*Scheduler){
		"order":    func(s *Scheduler) { s.running[0], s.running[1] = s.running[1], s.running[0] },
		"lease":    func(s *Scheduler) { s.waiting = append(s.waiting, s.running[1]) },
		"valid":    func(s *Scheduler) { s.running[0].valid++ },
		"computed": func(s *Scheduler) { s.running[0].usage.Computed-- },
		"cached":   func(s *Scheduler) { s.running[0].usage.Cached.Host = 3 },
		"shared":   func(s *Scheduler) { s.running[1].lease = s.running[0].lease },
	} {
		w := newWorld(t, "running=2")
		var b strings.Builder
		w.add(&b, "a", "1-6", nil)
		w.add(&b, "b", "11-16", nil)
		w.s.Next(w.now())
		if err := w.s.Done(make([]int32, 2), w.now()); err != nil {
			t.Fatal(err)
		}
		if err := w.s.Check(); err != nil {
			t.Fatal(err)
		}
		damage(w.s)
		if w.s.Check() == nil {
			t.Errorf("%s: the check does not see it", name)
		}
	}
}
