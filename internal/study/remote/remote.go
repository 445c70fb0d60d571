// Package remote carries out the study against a server that is not ours: recompute, host memory and HBM side by side,
// each brought about by what the server's own API allows (flushing, priming, fresh prompts, filler traffic that evicts
// the device's copy) and each proven from the cached tokens that the server reports in its answers and counters. What
// can not be proven is left out and named; nothing is assumed. It fills the same record as package study.
//
// Start at Run; prove.go holds what counts as a proof.
package remote

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"larder/internal/loadgen"
	"larder/internal/loadgen/scrape"
	"larder/internal/record"
	"larder/internal/study"
	"larder/internal/workload"
)

// ErrUnproven says that fewer than two arms could be proven, so that there is nothing to compare. The record names the
// reasons.
var ErrUnproven = errors.New("fewer than two arms could be proven")

// Align is what prefixes are rounded down to: a multiple of every block size in use.
const Align = 64

// Driver sends requests over HTTP; loadgen.Run is one.
type Driver func(ctx context.Context, cfg loadgen.Config, items []workload.Item) (*loadgen.Result, error)

// Control empties the server's cache; *loadgen.Control is one.
type Control interface {
	Flush(ctx context.Context, wait time.Duration) error
}

// Counters reads the server's metrics; *scrape.Endpoint is one.
type Counters interface {
	Read(ctx context.Context) (*scrape.Snapshot, error)
}

// Env is what a study is given.
type Env struct {
	Load     loadgen.Config // how to send: URL, backend, model, headers
	Driver   Driver
	Control  Control
	Counters Counters

	Tool      string
	Server    string // its kind, version and address, for the report
	Host      record.Host
	Model     string
	VocabLow  int // ids of prompts are in [VocabLow, VocabHigh)
	VocabHigh int
	Capacity  int // tokens that the device's KV memory holds; 0: as /metrics says, or not known
	Filler    int // tokens of filler that evict the device's copy; 0: a tenth more than the capacity

	Settle   time.Duration  // quiet before each burst
	Lag      time.Duration  // how long counters may trail the answers
	Progress study.Progress // may be nil
}

func (e *Env) validate(cfg *study.Config) error {
	switch {
	case e.Driver == nil || e.Control == nil || e.Counters == nil:
		return errors.New("study: the driver, the control and the counters must be set")
	case cfg.Prefixes != "" && cfg.Prefixes != "own":
		return fmt.Errorf("prefixes %q: against a server, each request has a prefix of its own", cfg.Prefixes)
	case cfg.SharedLen(cfg.HitRate, Align) == 0:
		return fmt.Errorf("%v of %d tokens is less than %d: too little to share", cfg.HitRate, cfg.InputLen, Align)
	}
	return nil
}

// run is one study under way. It is used by one goroutine.
type run struct {
	cfg    *study.Config
	env    *Env
	out    *record.Study
	shared int
	start  time.Time

	knows     knowledge
	sets      uint64 // prompt sets made so far; keys their salt
	left      []burstLeft
	tried     map[string]int // bursts of an arm in the first repeat
	unproven  map[string]int // of these, how many could not be proven
	checks    tally
	first     map[answerKey]string // answers by request, of the arm that ran first
	proofs    map[string]int       // kept bursts by what proved them
	sent      float64              // tokens so far, for the progress
	total     float64
	tokenSize float64 // bytes of KV for a token, where the server's counters tell; 0: not known
}

// burstLeft is a burst whose arm could not be proven.
type burstLeft struct {
	arm    string
	batch  int
	reason string
}

type answerKey struct{ repeat, batch, shared, index int }

// Run carries out the study. Once it has begun to measure it always returns a record: with ErrUnproven or
// study.ErrChecks at the end, or with what broke it and Complete unset.
func Run(ctx context.Context, cfg study.Config, env Env) (*record.Study, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := env.validate(&cfg); err != nil {
		return nil, err
	}
	r := &run{cfg: &cfg, env: &env, shared: cfg.SharedLen(cfg.HitRate, Align), start: time.Now(), tried: map[string]int{}, unproven: map[string]int{},
		first: map[answerKey]string{}, proofs: map[string]int{}}
	if err := r.probe(ctx); err != nil {
		return nil, err
	}
	r.out = r.newRecord()
	r.total = r.predict()
	err := r.measure(ctx)
	r.conclude(ctx, err)
	switch failed := r.out.FailedChecks(); {
	case err != nil:
		return r.out, err
	case len(failed) > 0:
		return r.out, fmt.Errorf("%w: %s", study.ErrChecks, strings.Join(failed, "; "))
	case len(r.armsKept()) < 2:
		return r.out, ErrUnproven
	}
	return r.out, nil
}

// measure does all that touches the server after the probe.
func (r *run) measure(ctx context.Context) error {
	if err := r.warmUp(ctx); err != nil {
		return err
	}
	for rep := range r.cfg.Repeats {
		for k, batch := range r.cfg.BatchSizes {
			if err := r.turn(ctx, rep, k, batch); err != nil {
				return err
			}
		}
	}
	for _, rate := range r.cfg.HeldOut {
		if err := r.heldOut(ctx, rate); err != nil {
			return err
		}
	}
	for _, d := range r.cfg.Decode {
		if err := r.decode(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// warmUp sends one burst of the largest size that is never measured: a server compiles and captures what it needs for
// a shape when it first sees it.
func (r *run) warmUp(ctx context.Context) error {
	set, err := r.prompts(slices.Max(r.cfg.BatchSizes), r.shared, r.cfg.OutputLen)
	if err != nil {
		return err
	}
	_, err = r.send(ctx, set.items, 0, "warm-up")
	return err
}

// turn runs the arms at one batch size, one after another, beginning with another one each time.
func (r *run) turn(ctx context.Context, rep, k, batch int) error {
	first := (rep + k) % len(r.cfg.Arms)
	order := slices.Concat(r.cfg.Arms[first:], r.cfg.Arms[:first])
	r.out.Workload.Order = append(r.out.Workload.Order, order)
	set, err := r.prompts(batch, r.shared, r.cfg.OutputLen)
	if err != nil {
		return err
	}
	for pos, arm := range order {
		if r.hopeless(arm) {
			continue
		}
		if set, err = r.fresh(set, pos, batch, r.shared, r.cfg.OutputLen); err != nil {
			return err
		}
		row, why, err := r.arm(ctx, set, record.Row{Arm: arm, Repeat: rep, Position: pos, SharedLen: r.shared}, r.cfg.OutputLen)
		if err != nil {
			return err
		}
		if rep == 0 {
			r.tried[arm]++
		}
		if why == "" {
			r.out.Rows = append(r.out.Rows, row)
			continue
		}
		if rep == 0 {
			r.unproven[arm]++
		}
		r.left = append(r.left, burstLeft{arm, batch, why})
	}
	return nil
}

// fresh is the set itself when the server can be emptied between the arms, so that all get the same prompts. Else each
// arm after the first gets prompts of its own: the old ones are cached by now.
func (r *run) fresh(set *prompts, pos, batch, shared, output int) (*prompts, error) {
	if r.knows.flush == "" || pos == 0 {
		return set, nil
	}
	return r.prompts(batch, shared, output)
}

// hopeless says whether an arm is not worth trying: it can not be brought about here, or the whole first repeat failed
// to prove it.
func (r *run) hopeless(arm string) bool {
	return r.knows.impossible[arm] != "" || r.tried[arm] == len(r.cfg.BatchSizes) && r.unproven[arm] == r.tried[arm]
}

// heldOut measures another prefix length once at the smallest batch, for the break-even's line through two lengths.
func (r *run) heldOut(ctx context.Context, rate float64) error {
	shared := r.cfg.SharedLen(rate, Align)
	if shared == 0 || shared == r.shared {
		return nil
	}
	batch := slices.Min(r.cfg.BatchSizes)
	set, err := r.prompts(batch, shared, r.cfg.OutputLen)
	if err != nil {
		return err
	}
	for pos, arm := range r.cfg.Arms {
		if arm == record.Recompute || r.hopeless(arm) {
			continue
		}
		if set, err = r.fresh(set, pos, batch, shared, r.cfg.OutputLen); err != nil {
			return err
		}
		row, why, err := r.arm(ctx, set, record.Row{Arm: arm, Position: pos, SharedLen: shared}, r.cfg.OutputLen)
		if err != nil {
			return err
		}
		if why == "" {
			r.out.HeldOut = append(r.out.HeldOut, row)
		}
	}
	return nil
}

// decode measures longer answers with the prefix in device memory.
func (r *run) decode(ctx context.Context, d record.DecodeRun) error {
	if !slices.Contains(r.cfg.Arms, record.HBMArm) || r.hopeless(record.HBMArm) {
		return nil
	}
	set, err := r.prompts(d.Requests, r.shared, d.OutputLen)
	if err != nil {
		return err
	}
	row, why, err := r.arm(ctx, set, record.Row{Arm: record.HBMArm, Concurrency: d.Concurrency, SharedLen: r.shared}, d.OutputLen)
	if err == nil && why == "" {
		r.out.Decode = append(r.out.Decode, row)
	}
	return err
}

// prompts are the requests of a burst and the prefixes that they begin with.
type prompts struct {
	items    []workload.Item
	prefixes []workload.Item
}

// prompts draws a new set: nothing in it was sent before.
func (r *run) prompts(n, shared, output int) (*prompts, error) {
	set := workload.PrefixSet{Requests: n, PrefixLen: shared, TailLen: r.cfg.InputLen - shared, OutputLen: output,
		VocabLow: r.env.VocabLow, VocabSize: r.env.VocabHigh, Seed: r.cfg.Seed, Salt: r.cfg.Salt<<32 | r.nextSet()}
	p := new(prompts)
	var err error
	if p.items, err = set.Items(); err != nil {
		return nil, fmt.Errorf("prompts: %w", err)
	}
	if p.prefixes, err = set.Primers(); err != nil {
		return nil, fmt.Errorf("prefixes: %w", err)
	}
	return p, nil
}

func (r *run) nextSet() uint64 {
	r.sets++
	return r.sets
}

// send runs items; an error means that the study can not go on.
func (r *run) send(ctx context.Context, items []workload.Item, concurrency int, what string) (*loadgen.Result, error) {
	cfg := r.env.Load
	cfg.Stream, cfg.IgnoreEOS, cfg.Temperature, cfg.MaxConcurrency = true, true, 0, concurrency
	r.progress(what)
	res, err := r.env.Driver(ctx, cfg, items)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	failed := 0
	for i := range res.Outcomes {
		r.sent += float64(items[i].PromptLen)
		if !res.Outcomes[i].OK() {
			failed++
		}
	}
	if failed == len(items) {
		o := &res.Outcomes[0]
		return nil, fmt.Errorf("%s: all %d requests failed; the first: %s: %w", what, failed, o.Class, o.Err)
	}
	return res, nil
}

// answer is what a request brought, for comparing arms: the ids where the server sends them, else the text.
func answer(o *loadgen.Outcome) string {
	if o.OutputIDs == nil && o.Text == "" {
		return ""
	}
	h := sha256.Sum256(fmt.Appendf(nil, "%v %q", o.OutputIDs, o.Text))
	return string(h[:8])
}
