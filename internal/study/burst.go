package study

import (
	"context"
	"fmt"
	"slices"
	"time"

	"larder/internal/infer"
	"larder/internal/kv"
	"larder/internal/loadgen"
	"larder/internal/record"
	"larder/internal/stats"
)

// outputKey names a request across the arms.
type outputKey struct{ repeat, batch, shared, index int }

// measured is one burst with all that was seen of it.
type measured struct {
	at            record.Row
	burst         []prompt
	output        int // tokens asked for
	res           *loadgen.Result
	seen          map[[32]byte]Seen
	before, after infer.Stats
}

// burst sends one burst, everything due at once, and makes its row.
func (r *run) burst(ctx context.Context, at record.Row, burst []prompt, output int, what string) (record.Row, error) {
	m := &measured{at: at, burst: burst, output: output}
	work := r.plan.burst(at.Arm, len(burst), r.cfg.InputLen, at.SharedLen, output)
	if at.Concurrency > 0 {
		work = r.plan.decodeBurst(r.cfg, record.DecodeRun{Requests: len(burst), Concurrency: at.Concurrency, OutputLen: output}, at.SharedLen)
	}
	var err error
	if m.before, err = r.env.Control.Stats(ctx); err != nil {
		return record.Row{}, err
	}
	r.env.Tap.listen()
	m.res, err = r.send(ctx, items(burst, output), at.Concurrency, fmt.Sprintf("%s batch %d", what, len(burst)), work)
	m.seen = r.env.Tap.heard()
	if err != nil {
		return record.Row{}, err
	}
	if m.after, err = r.env.Control.Stats(ctx); err != nil {
		return record.Row{}, err
	}
	return r.row(m), nil
}

// row reduces a burst and checks it.
func (r *run) row(m *measured) record.Row {
	row := m.at
	row.Batch, row.Requests = len(m.burst), len(m.burst)
	row.DurationS = m.res.Duration.Seconds()
	var lag []float64
	for i := range m.res.Outcomes {
		o := &m.res.Outcomes[i]
		row.Detail = append(row.Detail, r.request(m, i, o))
		lag = append(lag, ms(o.Sent-o.Due))
		if !r.succeeded(m, i, o) {
			row.Failed++
			continue
		}
		row.InputTokens += len(m.burst[i].ids)
		row.OutputTokens += o.OutputTokens
		cached := tiers(o.Cached)
		row.Cached.Device += cached.Device
		row.Cached.Host += cached.Host
	}
	row.SendLag = Summary(lag, "no requests")
	if row.Concurrency > 0 {
		row.SendLag = Summary(nil, "with a cap on requests in flight the others wait to be sent")
	}
	row.Expected = expected(&row)
	row.Unproven = r.prove(m)
	Rates(&row, m.res.Outcomes, m.output, func(i int, o *loadgen.Outcome) []float64 { return r.gaps(m, i, o) })
	r.counters(&row, m)
	row.Split = split(m)
	r.limit(&row, m)
	r.compareOutput(m)
	return row
}

// expected is what the server must report as cached for the whole row.
func expected(row *record.Row) record.Tokens {
	n := row.SharedLen * (row.Requests - row.Failed)
	switch row.Arm {
	case record.HBMArm:
		return record.Tokens{Device: n}
	case record.HostArm:
		return record.Tokens{Host: n}
	}
	return record.Tokens{}
}

// succeeded notes the checks that each answer must pass by itself.
func (r *run) succeeded(m *measured, i int, o *loadgen.Outcome) bool {
	id := m.name(i)
	r.checks.expect(checkSucceeded, o.Class == "", "%s: %s: %v", id, o.Class, o.Err)
	if o.Class != "" {
		return false
	}
	r.checks.expect(checkPrompts, o.PromptTokens == len(m.burst[i].ids), "%s: the server counts %d prompt tokens, %d were sent", id, o.PromptTokens, len(m.burst[i].ids))
	r.checks.expect(checkOutputs, o.OutputTokens == m.output, "%s: %d tokens came, %d were asked for", id, o.OutputTokens, m.output)
	return true
}

// name is how checks call request i of the burst.
func (m *measured) name(i int) string {
	return fmt.Sprintf("%s batch %d repeat %d request %d", m.at.Arm, len(m.burst), m.at.Repeat, i)
}

// prove holds each answer's cached tokens against the arm, and counts those that do not fit. Where a prefix is
// shared, the first load of a group brings it to the device for the others: they may hit it there.
func (r *run) prove(m *measured) (unproven int) {
	loaded := map[int]bool{}
	for i := range m.res.Outcomes {
		if c := m.res.Outcomes[i].Cached; c != nil && c.Host == m.at.SharedLen {
			loaded[m.burst[i].group] = true
		}
	}
	for i := range m.res.Outcomes {
		o := &m.res.Outcomes[i]
		if o.Class != "" {
			continue
		}
		if o.Cached == nil {
			unproven++
			r.checks.expect(checkProven, false, "%s: the server does not say what was cached", m.name(i))
			continue
		}
		got, want := tiers(o.Cached), record.Tokens{}
		switch m.at.Arm {
		case record.HBMArm:
			want.Device = m.at.SharedLen
		case record.HostArm:
			want.Host = m.at.SharedLen
			if !r.cfg.own() && loaded[m.burst[i].group] && got.Device+got.Host == m.at.SharedLen {
				want = got
			}
		}
		ok := got == want && o.Cached.Total == want.Device+want.Host
		if !ok {
			unproven++
		}
		r.checks.expect(checkProven, ok, "%s: cached %d tokens (device %d, host %d) instead of device %d, host %d",
			m.name(i), o.Cached.Total, o.Cached.Device, o.Cached.Host, want.Device, want.Host)
	}
	return unproven
}

// tiers are the cached tokens by tier. The client has -1 for a tier that the server does not tell: then it is 0 here,
// and the total shows whether that can be.
func tiers(c *loadgen.Cached) record.Tokens {
	if c == nil {
		return record.Tokens{}
	}
	return record.Tokens{Device: max(c.Device, 0), Host: max(c.Host, 0)}
}

// Rates fills a row's throughput and latencies from the outcomes of its requests, of which output tokens each were
// asked. gaps gives the inter-token latencies of one answer in ms. The row's tokens and duration must be set.
func Rates(row *record.Row, outcomes []loadgen.Outcome, output int, gaps func(i int, o *loadgen.Outcome) []float64) {
	var ttft, e2e, tpot, itl []float64
	inFlight := 0.0
	for i := range outcomes {
		o := &outcomes[i]
		if o.Class != "" {
			continue
		}
		inFlight += (o.Done - o.Sent).Seconds()
		e2e = append(e2e, ms(o.Done-o.Sent))
		first, timed := o.TTFT()
		if !timed {
			continue
		}
		ttft = append(ttft, ms(first))
		if n := o.OutputTokens; n > 1 {
			tpot = append(tpot, ms(o.Done-o.First)/float64(n-1))
			itl = append(itl, gaps(i, o)...)
		}
	}
	const failed = "no request succeeded"
	why := failed
	if len(e2e) > 0 && output == 1 {
		why = "one output token: no time between tokens"
	}
	untimed := failed
	if len(e2e) > 0 {
		untimed = "no first token could be timed"
	}
	row.TTFT, row.E2E = Summary(ttft, untimed), Summary(e2e, failed)
	row.TPOT, row.ITL = Summary(tpot, why), Summary(itl, why)
	perSecond := func(n float64) record.Number {
		if len(e2e) == 0 {
			return record.Absent(failed)
		}
		return record.Of(n / row.DurationS)
	}
	row.InputPerS, row.OutputPerS = perSecond(float64(row.InputTokens)), perSecond(float64(row.OutputTokens))
	row.InFlightMean = perSecond(inFlight)
}

// gaps are the inter-token latencies of one answer: a chunk of several tokens counts as so many equal gaps. Their mean
// times the stream's tokens a second must be 1, or chunks and counts contradict each other.
func (r *run) gaps(m *measured, i int, o *loadgen.Outcome) []float64 {
	if len(o.Chunks) == 0 {
		r.checks.expect(checkITL, false, "%s: no chunks", m.name(i))
		return nil
	}
	after := o.OutputTokens - o.Chunks[0].Tokens
	if after == 0 {
		return nil // all came at once: there are no gaps
	}
	var gaps []float64
	for k := 1; k < len(o.Chunks); k++ {
		n := o.Chunks[k].Tokens
		for range n {
			gaps = append(gaps, ms(o.Chunks[k].At-o.Chunks[k-1].At)/float64(n))
		}
	}
	stream := ms(o.Chunks[len(o.Chunks)-1].At - o.Chunks[0].At)
	perToken := stream / float64(after)
	mean := stats.Mean(gaps).Or(0)
	r.checks.expect(checkITL, after > 0 && within(mean, perToken, 0.01), "%s: mean ITL %.4g ms over %d gaps, %.4g ms a token over the stream of %d tokens", m.name(i), mean, len(gaps), perToken, o.OutputTokens)
	return gaps
}

// counters compares the client's view with the engine's own counts.
func (r *run) counters(row *record.Row, m *measured) {
	row.Computed = m.computed()
	host := m.after.Tiers[kv.Host]
	loaded := host.LoadedBytes - m.before.Tiers[kv.Host].LoadedBytes
	row.LoadedBytes = record.Of(float64(loaded))
	row.StoredBytes = record.Of(float64(host.StoredBytes - m.before.Tiers[kv.Host].StoredBytes))
	if row.Failed > 0 {
		return
	}
	cached := row.Cached.Device + row.Cached.Host
	r.checks.expect(checkSums, cached+row.Computed == row.InputTokens, "%s batch %d repeat %d: %d cached + %d computed, %d in the prompts",
		row.Arm, row.Batch, row.Repeat, cached, row.Computed, row.InputTokens)
	want := uint64(row.Cached.Host) * uint64(r.env.Layout.TokenBytes())
	// Two requests that want the same host block share one load.
	ok := loaded == want || !r.cfg.own() && loaded < want && (loaded > 0) == (want > 0)
	r.checks.expect(checkBytes, ok, "%s batch %d repeat %d: %d bytes loaded, %d tokens came from the host tier = %d bytes",
		row.Arm, row.Batch, row.Repeat, loaded, row.Cached.Host, want)
}

// computed is how many prompt tokens went through the model: by each request's own usage where all were seen, else by
// the engine's counter.
func (m *measured) computed() int {
	n := 0
	for i := range m.burst {
		s, known := m.seen[promptKey(m.burst[i].ids)]
		if !known {
			return int(m.after.ComputedTokens - m.before.ComputedTokens)
		}
		n += s.Usage.Computed
	}
	return n
}

// compareOutput holds the greedy tokens of the burst against those of the arm that ran the same requests before.
func (r *run) compareOutput(m *measured) {
	for i := range m.res.Outcomes {
		o := &m.res.Outcomes[i]
		if o.Class != "" || m.at.Concurrency > 0 {
			continue
		}
		ids := o.OutputIDs
		if ids == nil {
			ids = m.seen[promptKey(m.burst[i].ids)].Output
		}
		if ids == nil {
			r.checks.expect(checkTokens, false, "%s: the server sent no token ids", m.name(i))
			continue
		}
		key := outputKey{m.at.Repeat, len(m.burst), m.at.SharedLen + m.output<<24, i}
		first, known := r.output[key]
		if !known {
			r.output[key] = slices.Clone(ids)
			continue
		}
		r.checks.expect(checkTokens, slices.Equal(first, ids), "%s: %v, another arm made %v", m.name(i), head(ids), head(first))
	}
}

func head(ids []int32) []int32 { return ids[:min(len(ids), 8)] }

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func within(got, want, rel float64) bool { return got >= want*(1-rel) && got <= want*(1+rel) }

// Summary reduces a sample; why says what it means when it is empty.
func Summary(xs []float64, why string) record.Summary {
	s := stats.Summarize("", xs, why)
	return record.Summary{N: s.N, Mean: number(s.Mean), Min: number(s.Min), P50: number(s.P50), P90: number(s.P90),
		P99: number(s.P99), Max: number(s.Max), Reason: s.Reason}
}

func number(v stats.Value) record.Number {
	x, ok := v.Get()
	if !ok {
		return record.Absent(v.Why())
	}
	return record.Of(x)
}

func interval(i stats.Interval) record.Interval {
	out := record.Interval{Mean: record.Of(i.Mean), Lo: record.Of(i.Lo), Hi: record.Of(i.Hi), N: i.N, Level: stats.Level, Reason: i.Reason}
	if !i.OK() {
		out.Lo, out.Hi = record.Absent(i.Reason), record.Absent(i.Reason)
	}
	if i.N == 0 {
		out.Mean = record.Absent(i.Reason)
	}
	return out
}
