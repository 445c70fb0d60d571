package server

import (
	"math"
	"slices"
	"time"

	"larder/internal/api"
	"larder/internal/infer"
)

// sequence is one answer in the making: a prompt, its settings, and what came so far. One goroutine owns it.
type sequence struct {
	req    infer.Request
	index  int // place in the answer
	choice int // among the n of one prompt
	every  int // frames in a stream come each so many tokens
	silent bool
	keep   bool // the stop token's and the stop string's text stay
	echo   string

	sink          sink
	ids           []int32
	finish        api.Finish
	usage         infer.Usage
	ended         bool       // no event will follow
	split         *reasoning // nil: the text is not parted
	thought       part       // between <think> and </think>
	content       part       // the rest; only with split
	thoughtTokens int

	start, first, last time.Time // arrival, first and latest token

	frame    int    // tokens in the last frame
	sent     int    // bytes of text in a stream of deltas
	escaped  []byte // shown text as JSON, for cumulative streams
	idsJSON  []byte
	idsCount int // ids in idsJSON
}

// newSequence makes the answer to ids. maxNew 0 is carried out as 1 and shown as 0: the model is run over the prompt
// and the token is dropped.
func (b *Backend) newSequence(st *settings, ids []int32, maxNew int, salt string) *sequence {
	q := &sequence{
		req: infer.Request{
			Tokens: ids, Salt: salt, Sampling: st.sampling, MaxNew: max(maxNew, 1), MinNew: st.minNew,
			StopIDs: st.stopIDs, IgnoreEOS: st.ignoreEOS,
		},
		every: st.every, silent: maxNew == 0, keep: st.keepStop,
		sink: newSink(b.newDetokenizer(st.skipSpecial), st.stop, st.keepStop),
	}
	q.finish.ID = -1
	return q
}

// take adds an event. It returns errStopString when the text reached a stop string.
func (q *sequence) take(ev *infer.Event, now time.Time) error {
	q.usage = ev.Usage
	if len(ev.Tokens) > 0 {
		q.last = now
		if q.first.IsZero() {
			q.first = now
		}
	}
	if q.silent {
		if ev.Finish != infer.NotFinished {
			q.end(api.Finish{Reason: "length", ID: -1})
		}
		return nil
	}
	for i, id := range ev.Tokens {
		q.ids = append(q.ids, id)
		if !q.keep && ev.Finish == infer.FinishStop && i == len(ev.Tokens)-1 && id == ev.StopID {
			break // its text is not part of the answer
		}
		hit := q.sink.push(id, len(q.ids) >= q.req.MinNew)
		q.part(1)
		if hit != "" {
			q.end(api.Finish{Reason: "stop", Text: hit, ID: -1})
			if ev.Finish != infer.NotFinished {
				return nil
			}
			return errStopString
		}
	}
	switch ev.Finish {
	case infer.FinishStop:
		q.endAs(api.Finish{Reason: "stop", ID: ev.StopID})
	case infer.FinishLength:
		q.endAs(api.Finish{Reason: "length", Length: len(q.ids), ID: -1})
	}
	return nil
}

// endAs ends the sequence for f, unless the last held-back characters complete a stop string.
func (q *sequence) endAs(f api.Finish) {
	if hit := q.sink.close(); hit != "" {
		f = api.Finish{Reason: "stop", Text: hit, ID: -1}
	}
	q.end(f)
}

func (q *sequence) end(f api.Finish) {
	q.finish, q.ended = f, true
	q.part(0)
}

// part gives new text to the split, if there is one; tokens is how many brought it.
func (q *sequence) part(tokens int) {
	if q.split == nil {
		return
	}
	before := q.split.state == inThink
	thought, content := q.split.push(q.delta(), q.ended)
	if before || q.split.state == inThink {
		q.thoughtTokens += tokens
	}
	q.thought.text = append(q.thought.text, thought...)
	q.content.text = append(q.content.text, content...)
}

// abort ends a sequence that somebody cancelled.
func (q *sequence) abort() {
	q.sink.close()
	q.end(api.Finish{Reason: "abort", Message: errAborted.Error(), ID: -1})
}

func (q *sequence) shown() []byte { return q.sink.text[:q.sink.shown] }

// part is a text that is sent piece by piece.
type part struct {
	text []byte
	sent int
}

func (p *part) rest() []byte {
	d := p.text[p.sent:]
	p.sent = len(p.text)
	return d
}

// delta is the text that may be shown and was not yet.
func (q *sequence) delta() []byte {
	d := q.sink.text[q.sent:q.sink.shown]
	q.sent = q.sink.shown
	return d
}

// sampled reports whether chance had a part in the answer.
func (q *sequence) sampled() bool { return q.req.Sampling.Temperature > 0 }

// usageOf is the OpenAI usage so far.
func (q *sequence) usageOf() api.Usage {
	return api.Usage{
		Prompt: len(q.req.Tokens), Completion: len(q.ids), Reasoning: q.thoughtTokens,
		Device: q.usage.Cached.Device, Host: q.usage.Cached.Host,
	}
}

// generated is the native result so far. It escapes what is new since the last call.
func (q *sequence) generated(index int) api.Generated {
	if q.escaped == nil {
		q.escaped = api.AppendEscaped(make([]byte, 0, 64), q.echo)
	}
	q.escaped = api.AppendEscaped(q.escaped, q.delta())
	q.idsJSON = api.AppendIDs(q.idsJSON, q.ids[q.idsCount:], q.idsCount > 0)
	q.idsCount = len(q.ids)
	u := &q.usage
	g := api.Generated{Text: q.escaped, IDs: q.idsJSON, Index: index, Meta: api.Meta{
		ID: q.req.ID, Finish: q.finish, Prompt: len(q.req.Tokens), Completion: len(q.ids),
		Cached: !u.Timing.Admitted.IsZero(), Device: u.Cached.Device, Host: u.Cached.Host, Computed: u.Computed,
		Retractions: u.Retractions,
	}}
	if q.sampled() {
		g.Meta.Seed = &q.req.Sampling.Seed
	}
	if q.ended {
		g.Meta.Timing = q.timing()
	}
	return g
}

// timing is what meta_info says of a finished sequence.
func (q *sequence) timing() *api.Timing {
	t := &q.usage.Timing
	done := q.last
	if done.IsZero() {
		done = time.Now()
	}
	out := &api.Timing{
		E2E: between(q.start, done), Queue: between(t.Queued, t.Admitted), Load: between(t.Admitted, t.Loaded),
		TTFT: between(q.start, q.first), DecodeRate: math.NaN(), Received: unixSeconds(q.start), Finished: unixSeconds(done),
	}
	if d := between(q.first, done); len(q.ids) > 1 && d > 0 {
		out.DecodeRate = float64(len(q.ids)-1) / d
	}
	return out
}

// between is the time from a to b in seconds; NaN if either has not happened.
func between(a, b time.Time) float64 {
	if a.IsZero() || b.IsZero() {
		return math.NaN()
	}
	return b.Sub(a).Seconds()
}

func unixSeconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// due reports whether a stream should send a frame now.
func (q *sequence) due() bool {
	n := len(q.ids)
	if !q.ended && (n == q.frame || q.every > 1 && n%q.every != 1 && n-q.frame < q.every) {
		return false
	}
	q.frame = n
	return true
}

// expand makes the n choices of a prompt out of one sequence's request; each has a random stream of its own.
func (b *Backend) expand(st *settings, ids []int32, maxNew int, salt, rid string) []*sequence {
	all := make([]*sequence, st.n)
	for i := range all {
		q := b.newSequence(st, ids, maxNew, salt)
		q.choice = i
		q.req.ID = rid
		if i > 0 {
			q.req.ID = rid + "_" + itoa(i)
			q.req.Sampling.Seed += uint64(i)
		}
		q.req.StopIDs = slices.Clip(q.req.StopIDs)
		all[i] = q
	}
	return all
}
