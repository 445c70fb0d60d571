package study

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"larder/internal/infer"
	"larder/internal/kv"
	"larder/internal/record"
)

// run is one study under way. It is used by one goroutine.
type run struct {
	cfg    *Config
	env    *Env
	out    *record.Study
	plan   *plan
	checks *checks
	shared int
	output map[outputKey][]int32 // greedy tokens by request, of the arm that ran first
}

func newRun(ctx context.Context, cfg *Config, env *Env) (*run, error) {
	r := &run{cfg: cfg, env: env, checks: newChecks(), output: map[outputKey][]int32{}}
	r.shared = cfg.SharedLen(cfg.HitRate, env.Layout.BlockTokens)
	if r.shared == 0 {
		return nil, fmt.Errorf("study: %v of %d tokens is less than one block of %d: nothing to share", cfg.HitRate, cfg.InputLen, env.Layout.BlockTokens)
	}
	stats, err := env.Control.Stats(ctx)
	if err != nil {
		return nil, fmt.Errorf("study: %w", err)
	}
	if err := r.fits(stats); err != nil {
		return nil, err
	}
	start := time.Now()
	r.plan = newPlan(env, start)
	r.plan.total = r.predict()
	r.out = r.newRecord(start)
	return r, nil
}

// fits refuses a server whose tiers are too small to hold what the study places.
func (r *run) fits(s infer.Stats) error {
	if s.BlockTokens != 0 && s.BlockTokens != r.env.Layout.BlockTokens {
		return fmt.Errorf("study: the engine has blocks of %d tokens, the layout says %d", s.BlockTokens, r.env.Layout.BlockTokens)
	}
	need := r.cfg.NeedBlocks(r.env.Layout)
	for t := range kv.NumTiers {
		if t == kv.Host && !slices.Contains(r.cfg.Arms, record.HostArm) {
			continue
		}
		if got := s.Tiers[t].Total; got < need {
			return fmt.Errorf("study: the %s tier has %d blocks, this study needs %d (%.2f GiB)", t, got, need, float64(need)*float64(r.env.Layout.BlockBytes())/(1<<30))
		}
	}
	return nil
}

func maxBatch(c *Config) int { return slices.Max(c.BatchSizes) }
func minBatch(c *Config) int { return slices.Min(c.BatchSizes) }

// measure does all that touches the server. What it has appended to the record stays whatever happens next.
func (r *run) measure(ctx context.Context) error {
	if err := r.warmUp(ctx); err != nil {
		return err
	}
	for rep := range r.cfg.Repeats {
		if err := r.repeat(ctx, rep); err != nil {
			return err
		}
	}
	for i, h := range r.cfg.HeldOut {
		if err := r.heldOut(ctx, i, h); err != nil {
			return err
		}
	}
	for i, d := range r.cfg.Decode {
		if err := r.decode(ctx, i, d); err != nil {
			return err
		}
	}
	return r.leaveEmpty(ctx)
}

// warmUp takes every path once with prompts that are never measured: cold, hit on the device, hit on the host.
func (r *run) warmUp(ctx context.Context) error {
	p, err := r.makePrompts(saltWarmup, r.shared, []int{1, 1}, r.cfg.OutputLen)
	if err != nil {
		return err
	}
	if err := r.empty(ctx); err != nil {
		return err
	}
	if err := r.prime(ctx, p.prefixes, "warm-up"); err != nil {
		return err
	}
	arms := []string{record.HBMArm}
	if slices.Contains(r.cfg.Arms, record.HostArm) {
		arms = append(arms, record.HostArm)
	}
	for k, arm := range arms {
		if _, err := r.place(ctx, arm, p, p.bursts[k]); err != nil {
			return err
		}
		if _, err := r.send(ctx, items(p.bursts[k], r.cfg.OutputLen), 0, "warm-up", r.plan.burst(arm, 1, r.cfg.InputLen, r.shared, r.cfg.OutputLen)); err != nil {
			return err
		}
	}
	return nil
}

// repeat runs every arm over every batch size with the same prompts. The order of the arms turns by one each time that
// they take turns, so each arm comes first, second and last as often as the others (a Latin square).
//
// By default they take turns once a repeat: a prefix is primed once an arm and serves its bursts of all sizes, whose
// tails differ. Turns at each batch size pair the bursts more closely in time and prime for each of them, which on a
// CPU costs as much as the measurement.
func (r *run) repeat(ctx context.Context, rep int) error {
	p, err := r.makePrompts(saltRepeat+uint64(rep), r.shared, r.cfg.BatchSizes, r.cfg.OutputLen)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("repeat %d/%d", rep+1, r.cfg.Repeats)
	if r.cfg.Interleave != "batch" {
		return r.turn(ctx, p, rep, rep, what)
	}
	for k := range p.bursts {
		if err := r.turn(ctx, p.only(k), rep, rep+k, what); err != nil {
			return err
		}
	}
	return nil
}

// turn runs the arms over p one after another, beginning with arm number first (modulo their number).
func (r *run) turn(ctx context.Context, p *prompts, rep, first int, what string) error {
	first %= len(r.cfg.Arms)
	order := slices.Concat(r.cfg.Arms[first:], r.cfg.Arms[:first])
	r.out.Workload.Order = append(r.out.Workload.Order, order)
	for pos, arm := range order {
		at := record.Row{Arm: arm, Repeat: rep, Position: pos, SharedLen: r.shared}
		rows, err := r.arm(ctx, p, at, r.cfg.OutputLen, what+" "+arm)
		r.out.Rows = append(r.out.Rows, rows...)
		if err != nil {
			return err
		}
	}
	return nil
}

// arm primes and places, then measures each burst. at holds the fields that its rows share. The rows measured before
// an error are returned with it.
func (r *run) arm(ctx context.Context, p *prompts, at record.Row, output int, what string) ([]record.Row, error) {
	if err := r.empty(ctx); err != nil {
		return nil, err
	}
	if at.Arm != record.Recompute {
		if err := r.prime(ctx, p.prefixes, what+" priming"); err != nil {
			return nil, err
		}
	}
	var rows []record.Row
	for _, burst := range p.bursts {
		burst = r.salted(at, burst)
		wrong, err := r.place(ctx, at.Arm, p, burst)
		if err != nil {
			return rows, err
		}
		r.checks.note(checkPlaced, len(burst), wrong)
		row, err := r.burst(ctx, at, burst, output, what)
		if err != nil {
			return rows, err
		}
		rows = append(rows, row)
		if wrong, err = r.settle(ctx, at.Arm, burst); err != nil {
			return rows, err
		}
		if at.Arm == record.HostArm {
			r.checks.note(checkStored, len(burst), wrong)
		}
	}
	return rows, nil
}

// salted gives each request of the recompute arm a cache partition of its own where prefixes are shared: else the
// second of a group would hit what the first has just computed, and the arm would not be "no hit" any more.
func (r *run) salted(at record.Row, burst []prompt) []prompt {
	if r.cfg.own() || at.Arm != record.Recompute {
		return burst
	}
	out := slices.Clone(burst)
	for i := range out {
		out[i].salt = fmt.Sprintf("study-%d-%d-%d", at.Repeat, len(burst), i)
	}
	return out
}

// heldOut measures another hit rate once in the arms that load or reuse, at the smallest batch, for the model to
// predict.
func (r *run) heldOut(ctx context.Context, i int, rate float64) error {
	shared := r.cfg.SharedLen(rate, r.env.Layout.BlockTokens)
	if shared == 0 || shared == r.shared {
		return nil
	}
	p, err := r.makePrompts(saltHeldOut+uint64(i), shared, []int{minBatch(r.cfg)}, r.cfg.OutputLen)
	if err != nil {
		return err
	}
	for pos, arm := range r.cfg.Arms {
		if arm == record.Recompute {
			continue
		}
		at := record.Row{Arm: arm, Position: pos, SharedLen: shared}
		rows, err := r.arm(ctx, p, at, r.cfg.OutputLen, fmt.Sprintf("held-out hit rate %g %s", rate, arm))
		r.out.HeldOut = append(r.out.HeldOut, rows...)
		if err != nil {
			return err
		}
	}
	return nil
}

// decode measures longer answers with the prefix in device memory, as the document does.
func (r *run) decode(ctx context.Context, i int, d record.DecodeRun) error {
	p, err := r.makePrompts(saltDecode+uint64(i), r.shared, []int{d.Requests}, d.OutputLen)
	if err != nil {
		return err
	}
	at := record.Row{Arm: record.HBMArm, Concurrency: d.Concurrency, SharedLen: r.shared}
	rows, err := r.arm(ctx, p, at, d.OutputLen, fmt.Sprintf("decode %d x %d tokens", d.Requests, d.OutputLen))
	r.out.Decode = append(r.out.Decode, rows...)
	return err
}

// leaveEmpty flushes and reads back that no block stayed behind.
func (r *run) leaveEmpty(ctx context.Context) error {
	if err := r.empty(ctx); err != nil {
		return err
	}
	s, err := r.env.Control.Stats(ctx)
	if err != nil {
		return err
	}
	var wrong []string
	for t := range kv.NumTiers {
		if ts := s.Tiers[t]; ts.Cached+ts.Leased != 0 || ts.Free != ts.Total {
			wrong = append(wrong, fmt.Sprintf("%s: %d cached, %d leased, %d of %d free", t, ts.Cached, ts.Leased, ts.Free, ts.Total))
		}
	}
	r.checks.note(checkEmpty, int(kv.NumTiers), wrong)
	if c, ok := r.env.Control.(infer.Checker); ok {
		var broken []string
		if err := c.Check(ctx); err != nil {
			broken = append(broken, err.Error())
		}
		r.checks.note(checkInvariants, 1, broken)
	}
	return nil
}

// unexplained is the reason of last resort. The tests know that it is never needed.
const unexplained = "no reason was noted"

// conclude turns what was measured into comparisons, the break-even and checks. cause is why measuring ended early.
func (r *run) conclude(ctx context.Context, cause error) {
	r.out.Comparisons = Comparisons(r.out.Rows, r.cfg.BatchSizes, r.cfg.Repeats)
	r.breakEven()
	r.checkRows()
	r.noteLateSends()
	r.out.Complete = cause == nil
	switch {
	case cause == nil:
	case errors.Is(cause, context.Canceled) || errors.Is(ctx.Err(), context.Canceled):
		r.out.Stopped = "interrupted; what was measured until then is kept"
	default:
		r.out.Stopped = cause.Error()
	}
	r.out.Checks = r.checks.list(cause == nil)
	record.Explain(r.out, unexplained) // a forgotten reason must not cost the whole record
	r.out.WallS = time.Since(r.plan.start).Seconds()
	if cause == nil {
		r.plan.finish("done")
	}
}
