package sched

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"larder/internal/arch"
	"larder/internal/infer"
	"larder/internal/kv"
	"larder/internal/kv/cache"
	"larder/internal/sample"
)

var update = flag.Bool("update", false, "rewrite the expected parts of testdata/*.txt")

// TestScripts runs testdata/*.txt: commands, a line of dashes, what they print, an empty line. See (*world).run for
// the commands. Rewrite with -update and review the difference.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d scripts, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := replay(t, string(text))
			if got == string(text) {
				return
			}
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Errorf("%s differs; it is now:\n%s", file, got)
		})
	}
}

func replay(t *testing.T, text string) string {
	w := &world{t: t, seqs: map[string]*Seq{}}
	var out strings.Builder
	for block := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		commands, _, _ := strings.Cut(block, "\n----")
		if out.Len() > 0 {
			out.WriteString("\n")
		}
		out.WriteString(commands + "\n----\n")
		for line := range strings.SplitSeq(commands, "\n") {
			if !strings.HasPrefix(line, "#") {
				out.WriteString(w.command(strings.Fields(line)))
			}
		}
	}
	return out.String()
}

// world is a scheduler with names for its sequences and a clock that ticks with each command.
type world struct {
	t     *testing.T
	s     *Scheduler
	cache *cache.Cache
	seqs  map[string]*Seq
	moves []kv.Move
	clock time.Duration
}

func (w *world) now() time.Time { return time.Unix(1000, 0).Add(w.clock) }

func (w *world) command(words []string) string {
	w.clock += time.Millisecond
	var b strings.Builder
	w.run(&b, words[0], words[1:])
	if w.s == nil {
		return b.String()
	}
	for _, o := range w.s.Outputs() {
		fmt.Fprintf(&b, "  %s:", o.Seq.req.ID)
		if o.Token >= 0 {
			fmt.Fprintf(&b, " token %d", o.Token)
		}
		if o.Finish != infer.NotFinished {
			u := o.Seq.Usage()
			fmt.Fprintf(&b, " end %s cached %d+%d computed %d made %d retracted %d", finishName(o), u.Cached.Device, u.Cached.Host, u.Computed, u.CompletionTokens, u.Retractions)
		}
		b.WriteString("\n")
	}
	if err := w.s.Check(); err != nil {
		fmt.Fprintf(&b, "BROKEN %v\n", err)
	}
	if err := w.cache.Check(); err != nil {
		fmt.Fprintf(&b, "BROKEN %v\n", err)
	}
	return b.String()
}

func finishName(o Output) string {
	switch o.Finish {
	case infer.FinishStop:
		return fmt.Sprint("stop ", o.StopID)
	case infer.FinishLength:
		return "length"
	}
	return fmt.Sprintf("abort (%v)", o.Err)
}

// run is one command:
//
//	new key=value...        a scheduler: block device host running queued chunk policy write minload nohold overlap
//	add NAME PROMPT key=... a request; the prompt is ranges of ids as in 1-8,20; max min stop salt
//	admit | next            ask for admissions, or for a step
//	done [TOKEN...]         the oldest step is done; without tokens all draw 100
//	moves                   take the moves ordered; land | lose: all taken moves are done | failed
//	cancel NAME | fail      end one, or all
//	state                   who runs and waits
func (w *world) run(b *strings.Builder, name string, args []string) {
	switch name {
	case "new":
		w.create(options(args))
	case "add":
		w.add(b, args[0], args[1], options(args[2:]))
	case "admit":
		w.s.Admit(w.now())
	case "next":
		w.next(b)
	case "done":
		if w.s.Under() == 0 {
			return
		}
		var tokens []int32
		for _, a := range args {
			tokens = append(tokens, int32(atoi(w.t, a)))
		}
		for len(args) == 0 && len(tokens) < w.s.steps[w.s.oldest].DrawnSequences {
			tokens = append(tokens, 100)
		}
		if err := w.s.Done(tokens, w.now()); err != nil {
			fmt.Fprintf(b, "error %v\n", err)
		}
	case "moves":
		var n [2]int
		for _, m := range w.cache.Moves() {
			n[m.To]++
			w.moves = append(w.moves, m)
		}
		fmt.Fprintf(b, "%d loads %d stores\n", n[kv.Device], n[kv.Host])
	case "land", "lose":
		for _, m := range w.moves {
			var err error
			if name == "lose" {
				err = errors.New("lost")
			}
			w.cache.Done(m.ID, err)
		}
		w.moves = nil
		w.s.Moved()
	case "cancel":
		w.s.Cancel(w.seqs[args[0]], errors.New("cancelled"), w.now())
	case "fail":
		w.s.Fail(errors.New("device gone"), w.now())
	case "state":
		w.state(b)
	default:
		w.t.Fatalf("unknown command %q", name)
	}
}

func atoi(t testing.TB, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func options(args []string) map[string]string {
	m := map[string]string{}
	for _, a := range args {
		k, v, _ := strings.Cut(a, "=")
		m[k] = v
	}
	return m
}

func (w *world) number(o map[string]string, key string, otherwise int) int {
	if v, ok := o[key]; ok {
		return atoi(w.t, v)
	}
	return otherwise
}

func (w *world) create(o map[string]string) {
	layout := kv.Layout{Layers: 1, KVHeads: 1, HeadDim: 1, BlockTokens: w.number(o, "block", 4), DType: arch.BF16}
	device := w.number(o, "device", 16)
	c, err := cache.New(cache.Config{
		Layout: layout, Fingerprint: "script", DeviceBlocks: device, HostBlocks: w.number(o, "host", 0),
		Write: cache.WritePolicy(w.number(o, "write", 0)),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	cfg := Config{
		MaxRunning: w.number(o, "running", 4), MaxQueued: w.number(o, "queued", 8), StepTokens: w.number(o, "chunk", 16),
		MinLoadTokens: w.number(o, "minload", 0), NoHold: w.number(o, "nohold", 0) == 1, Overlap: w.number(o, "overlap", 0) == 1, Layout: layout, DeviceBlocks: device,
	}
	if p, ok := o["policy"]; ok {
		if cfg.Policy, err = ParsePolicy(p); err != nil {
			w.t.Fatal(err)
		}
	}
	if w.s, err = New(cfg, c); err != nil {
		w.t.Fatal(err)
	}
	w.cache = c
}

func (w *world) add(b *strings.Builder, name, prompt string, o map[string]string) {
	r := &infer.Request{ID: name, MaxNew: w.number(o, "max", 4), MinNew: w.number(o, "min", 0), Salt: o["salt"], Sampling: sample.Params{TopP: 1}}
	for part := range strings.SplitSeq(prompt, ",") {
		from, to, ranged := strings.Cut(part, "-")
		first := atoi(w.t, from)
		last := first
		if ranged {
			last = atoi(w.t, to)
		}
		for id := first; id <= last; id++ {
			r.Tokens = append(r.Tokens, int32(id))
		}
	}
	if v, ok := o["stop"]; ok {
		r.StopIDs = []int32{int32(atoi(w.t, v))}
	}
	q := NewSeq(r, []int32{eos}, w.now())
	if err := w.s.Add(q); err != nil {
		fmt.Fprintf(b, "error %v\n", err)
		return
	}
	w.seqs[name] = q
}

func (w *world) next(b *strings.Builder) {
	if w.s.Under() == w.s.depth() {
		b.WriteString("a step is under way already\n")
		return
	}
	step := w.s.Next(w.now())
	if step == nil {
		b.WriteString("nothing\n")
		return
	}
	for _, r := range step.Rows {
		fmt.Fprintf(b, "%s %d+%d", r.Seq.req.ID, r.Context, r.Tokens)
		if r.From >= 0 {
			fmt.Fprintf(b, " from draw %d", r.From)
		}
		if r.Draw {
			b.WriteString(" draw")
			if d := r.Pick(); len(d.Banned) > 0 {
				fmt.Fprintf(b, " banned %v", d.Banned)
			}
		}
		b.WriteString("\n")
	}
}

func (w *world) state(b *strings.Builder) {
	for _, q := range w.s.running {
		note := ""
		if !q.ready {
			note = " loading"
		}
		if q.ended {
			note = " ended"
		}
		fmt.Fprintf(b, "runs %s %d/%d%s\n", q.req.ID, q.valid, len(q.tokens), note)
	}
	for _, q := range w.s.waiting {
		note := ""
		if q.hold.holds() {
			note = " held back by " + q.hold.by.req.ID
		}
		fmt.Fprintf(b, "waits %s%s\n", q.req.ID, note)
	}
}
