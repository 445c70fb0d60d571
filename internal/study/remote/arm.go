package remote

import (
	"context"
	"fmt"
	"time"

	"larder/internal/loadgen"
	"larder/internal/loadgen/scrape"
	"larder/internal/record"
	"larder/internal/study"
	"larder/internal/workload"
)

// arm brings an arm about, measures its burst and proves it. why is not empty when it could not be proven; err is for
// what ends the study.
func (r *run) arm(ctx context.Context, set *prompts, at record.Row, output int) (row record.Row, why string, err error) {
	what := fmt.Sprintf("repeat %d/%d %s batch %d", at.Repeat+1, r.cfg.Repeats, at.Arm, len(set.items))
	if err := r.bring(ctx, at.Arm, set, what); err != nil {
		return row, "", err
	}
	before := r.read(ctx)
	res, err := r.send(ctx, set.items, at.Concurrency, what)
	if err != nil {
		return row, "", err
	}
	e := &evidence{arm: at.Arm, know: &r.knows, outcomes: res.Outcomes, reach: r.reach(at.SharedLen)}
	r.observe(ctx, e, before)
	row = r.row(at, set, res, e, output)
	return row, e.verdict, nil
}

// bring puts the prefixes of a burst where the arm wants them, as far as traffic can. The filler that the host arm needs
// is sent in all arms: else that arm alone would find a full device and a server that has just been busy.
func (r *run) bring(ctx context.Context, arm string, set *prompts, what string) error {
	if r.knows.flush == "" {
		if err := r.env.Control.Flush(ctx, flushWait); err != nil {
			return fmt.Errorf("emptying the cache, which had worked before: %w", err)
		}
	}
	prime := func() error {
		for range 2 { // some write policies store only what was hit before
			if err := r.quiet(ctx, set.prefixes, what+": priming"); err != nil {
				return err
			}
		}
		return nil
	}
	fill := func() error { return r.evict(ctx, what+": filler") }
	steps := map[string][]func() error{record.Recompute: {fill}, record.HBMArm: {fill, prime}, record.HostArm: {prime, fill}}[arm]
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return pause(ctx, r.env.Settle)
}

// quiet sends requests that are not measured. All must succeed.
func (r *run) quiet(ctx context.Context, items []workload.Item, what string) error {
	res, err := r.send(ctx, items, fillerInFlight, what)
	if err != nil {
		return err
	}
	for i := range res.Outcomes {
		if o := &res.Outcomes[i]; !o.OK() {
			return fmt.Errorf("%s: request %d: %s: %w", what, i, o.Class, o.Err)
		}
	}
	return nil
}

// fillerInFlight is how many unmeasured requests are under way at once.
const fillerInFlight = 8

// evict sends filler until everything older has left the device; nothing where there is no host arm.
func (r *run) evict(ctx context.Context, what string) error {
	if !r.fills() {
		return nil
	}
	n := (r.filler() + r.cfg.InputLen - 1) / r.cfg.InputLen
	set, err := r.prompts(n, 0, 1)
	if err != nil {
		return err
	}
	return r.quiet(ctx, set.items, what)
}

// reach is how many cached tokens a known prefix brings: measured at the study's length, and as many fewer at another.
func (r *run) reach(shared int) int {
	return r.knows.reach - (r.shared - shared)
}

// pause waits; an error when ctx ended first.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lagSteps is in how many readings a server's counters may catch up.
const lagSteps = 4

// observe reads the counters after a burst and judges. Counters may trail the answers, so a burst that is not proven is
// looked at again for as long as they may.
func (r *run) observe(ctx context.Context, e *evidence, before *scrape.Snapshot) {
	for step := range lagSteps {
		e.delta = nil
		if before != nil {
			if after := r.read(ctx); after != nil {
				e.delta, _ = after.Counts().Less(before.Counts())
			}
		}
		if e.judge(); e.verdict == "" || e.delta == nil {
			return
		}
		if step < lagSteps-1 && pause(ctx, r.env.Lag/(lagSteps-1)) != nil {
			return
		}
	}
}

// row reduces a burst.
func (r *run) row(at record.Row, set *prompts, res *loadgen.Result, e *evidence, output int) record.Row {
	row := at
	row.Batch, row.Requests, row.DurationS = len(set.items), len(set.items), res.Duration.Seconds()
	var lag []float64
	for i := range res.Outcomes {
		o := &res.Outcomes[i]
		row.Detail = append(row.Detail, detail(i, o))
		lag = append(lag, ms(o.Sent-o.Due))
		if !o.OK() {
			row.Failed++
			continue
		}
		row.InputTokens += len(set.items[i].IDs)
		row.OutputTokens += o.OutputTokens
	}
	row.SendLag = study.Summary(lag, "no requests")
	if row.Concurrency > 0 {
		row.SendLag = study.Summary(nil, "with a cap on requests in flight the others wait to be sent")
	}
	row.Cached, row.Unproven = e.cached(), e.unproven
	row.Expected = e.expected()
	row.Computed = row.InputTokens - row.Cached.Device - row.Cached.Host
	r.checkSuccess(&row, res)
	if e.verdict == "" {
		r.checkBurst(&row, res, output)
		r.proofs[e.proof]++
	}
	study.Rates(&row, res.Outcomes, output, gaps)
	r.bytes(&row, e.delta)
	const foreign = "the ceilings of the server's machine are not known"
	row.LimitS, row.Share = record.Absent(foreign), record.Absent(foreign)
	none := record.Absent(noTimes)
	row.Split = record.Split{Queue: none, Load: none, Compute: none, Outside: none, Reason: noTimes}
	return row
}

const noTimes = "the server's own times are not known"

// bytes fills what was moved, by the server's counters.
func (r *run) bytes(row *record.Row, delta scrape.Counts) {
	get := func(name string) record.Number {
		if v, ok := delta[name]; ok {
			return record.Of(v)
		}
		return record.Absent("the server does not count it")
	}
	row.LoadedBytes, row.StoredBytes = get(scrape.LoadBytes), get(scrape.StoreBytes)
	bytes, tokens := delta[scrape.LoadBytes], delta[scrape.LoadTokens]
	if bytes > 0 && tokens > 0 {
		r.tokenSize = bytes / tokens
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// detail is one request of a row.
func detail(i int, o *loadgen.Outcome) record.Request {
	none := record.Absent(noTimes)
	q := record.Request{Index: i, SentMS: record.Of(ms(o.Sent)), DoneMS: record.Of(ms(o.Done)), FirstMS: record.Of(ms(o.First)), Admitted: none, Loaded: none, Started: none, Output: max(o.OutputTokens, 0), Reason: noTimes}
	if o.Cached != nil {
		q.Cached = record.Tokens{Device: max(o.Cached.Device, 0), Host: max(o.Cached.Host, 0)}
	}
	if o.First == 0 {
		q.FirstMS = record.Absent("no token came")
	}
	if !o.OK() {
		q.Error = o.Class
		if o.Err != nil {
			q.Error += ": " + o.Err.Error()
		}
	}
	return q
}

// gaps are the inter-token latencies of one answer: a chunk of several tokens counts as so many equal gaps, one whose
// tokens nobody counted as one.
func gaps(_ int, o *loadgen.Outcome) []float64 {
	var out []float64
	for k := 1; k < len(o.Chunks); k++ {
		n := max(o.Chunks[k].Tokens, 1)
		for range n {
			out = append(out, ms(o.Chunks[k].At-o.Chunks[k-1].At)/float64(n))
		}
	}
	return out
}
