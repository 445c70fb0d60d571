package serving

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"time"

	"larder/internal/loadgen"
	"larder/internal/loadgen/scrape"
	"larder/internal/runlog"
)

// Log is the run request by request. names holds what the outcomes do not know: tool, model, data set, seed, tag.
func Log(m *Metrics, res *loadgen.Result, names runlog.Run) *runlog.Run {
	r := names
	r.Started, r.DurationS, r.Interrupted = res.Start.UTC(), m.Duration, res.Interrupted
	r.Backend, r.Rate, r.MaxConcurrency, r.Warnings = m.Setup.Backend, m.rate(), m.Setup.MaxConcurrency, m.Warnings()
	if s := m.Setup.Server; s != nil {
		r.Server = readings(s.Points)
	}
	r.Requests = make([]runlog.Request, len(res.Outcomes))
	for i := range res.Outcomes {
		r.Requests[i] = logged(i, &res.Outcomes[i])
	}
	return &r
}

func readings(points []scrape.Point) []runlog.Reading {
	var out []runlog.Reading
	for _, p := range points {
		get := func(name string) *float64 {
			if v, ok := p.State[name]; ok {
				return &v
			}
			return nil
		}
		out = append(out, runlog.Reading{AtMS: 1000 * p.AtS, Running: get(scrape.Running), Waiting: get(scrape.Waiting), Usage: get(scrape.Usage)})
	}
	return out
}

// logged is one outcome as a line of the log.
func logged(i int, o *loadgen.Outcome) runlog.Request {
	q := runlog.Request{Index: i, Prompt: promptHash(o), PromptLen: o.Item.PromptLen, Asked: o.Item.OutputLen, Output: max(o.OutputTokens, 0), CountedBy: o.TokenSource,
		DueMS: micro(o.Due), Finish: o.FinishReason, Class: o.Class, Status: o.Status, Gaps: []float64{}, Cached: cachedLog(o.Cached)}
	if o.PromptTokens >= 0 {
		q.ServerCount = &o.PromptTokens
	}
	if o.Err != nil {
		q.Error = o.Err.Error()
	}
	switch {
	case o.Sent == loadgen.NeverSent:
		q.Reason = "it was never sent"
		return q
	case o.First == 0 && o.OK():
		q.Reason = "no output that could be timed"
	case o.First == 0:
		q.Reason = "it failed before any output"
	}
	q.SentMS, q.DoneMS = timed(o.Sent, true), timed(o.Done, o.Done > 0)
	q.FirstByteMS, q.FirstMS = timed(o.FirstByte, o.FirstByte > 0), timed(o.First, o.First > 0)
	single := true
	eachGap(o, func(_ time.Duration, gap float64, tokens int) {
		q.Gaps, q.GapTokens = append(q.Gaps, math.Round(gap*1000)/1000), append(q.GapTokens, tokens)
		single = single && tokens == 1
	})
	if single {
		q.GapTokens = nil
	}
	return q
}

// micro is ms to the microsecond: what a clock read in a busy process is worth.
func micro(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func timed(d time.Duration, ok bool) *float64 {
	if !ok {
		return nil
	}
	v := micro(d)
	return &v
}

func cachedLog(c *loadgen.Cached) *runlog.Cached {
	if c == nil {
		return nil
	}
	tier := func(n int) *int {
		if n < 0 {
			return nil
		}
		return &n
	}
	return &runlog.Cached{Total: max(c.Total, 0), Device: tier(c.Device), Host: tier(c.Host), Storage: tier(c.Storage)}
}

// promptHash names what was sent, and how many tokens were asked for.
func promptHash(o *loadgen.Outcome) string {
	h := sha256.New()
	var n [8]byte
	number := func(v uint64) { binary.LittleEndian.PutUint64(n[:], v); h.Write(n[:]) }
	text := func(s string) { number(uint64(len(s))); h.Write([]byte(s)) }
	number(uint64(o.Item.OutputLen))
	text(o.Item.Text)
	for _, id := range o.Item.IDs {
		number(uint64(id))
	}
	for _, m := range o.Item.Messages {
		text(m.Role)
		text(m.Content)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}
