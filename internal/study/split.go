package study

import (
	"time"

	"larder/internal/loadgen"
	"larder/internal/record"
	"larder/internal/stats"
)

// noTap is why a time of the engine's is absent.
const noTap = "the engine's own times were not seen"

// stages are the parts of one request's time to first token.
type stages struct{ queue, load, compute, outside time.Duration }

// stagesOf splits a request's time; ok is false when the engine's times are missing. The parts sum to the TTFT.
func stagesOf(s Seen, known bool, o *loadgen.Outcome) (st stages, ok bool) {
	t := s.Usage.Timing
	if !known || t.Queued.IsZero() || t.Admitted.IsZero() || t.Computing.IsZero() || t.FirstToken.IsZero() {
		return stages{}, false
	}
	loaded := t.Loaded
	if loaded.IsZero() || loaded.Before(t.Admitted) {
		loaded = t.Admitted
	}
	if loaded.After(t.Computing) {
		loaded = t.Computing // what computing hides is not waited for
	}
	st.load = loaded.Sub(t.Admitted)
	st.queue = t.Admitted.Sub(t.Queued) + t.Computing.Sub(loaded)
	st.compute = t.FirstToken.Sub(t.Computing)
	st.outside = o.First - o.Sent - st.queue - st.load - st.compute
	return st, true
}

// split is the mean of the stages over a burst's requests.
func split(m *measured) record.Split {
	var queue, load, compute, outside []float64
	for i := range m.res.Outcomes {
		o := &m.res.Outcomes[i]
		s, known := m.seen[promptKey(m.burst[i].ids)]
		st, ok := stagesOf(s, known, o)
		if !ok || o.Class != "" {
			continue
		}
		queue, load = append(queue, ms(st.queue)), append(load, ms(st.load))
		compute, outside = append(compute, ms(st.compute)), append(outside, ms(st.outside))
	}
	if len(queue) == 0 {
		none := record.Absent(noTap)
		return record.Split{Queue: none, Load: none, Compute: none, Outside: none, Reason: noTap}
	}
	mean := func(xs []float64) record.Number { return number(stats.Mean(xs)) }
	return record.Split{Queue: mean(queue), Load: mean(load), Compute: mean(compute), Outside: mean(outside)}
}

// request is the row of one request for the timeline.
func (r *run) request(m *measured, i int, o *loadgen.Outcome) record.Request {
	q := record.Request{Index: i, SentMS: record.Of(ms(o.Sent)), DoneMS: record.Of(ms(o.Done)), Output: o.OutputTokens}
	q.Cached = tiers(o.Cached)
	q.FirstMS = record.Of(ms(o.First))
	if o.Class != "" {
		q.Error = o.Class
		if o.Err != nil {
			q.Error += ": " + o.Err.Error()
		}
	}
	if o.First == 0 {
		q.FirstMS = record.Absent("no token came")
	}
	s, known := m.seen[promptKey(m.burst[i].ids)]
	at := func(t time.Time) record.Number {
		if !known || t.IsZero() {
			return record.Absent(noTap)
		}
		return record.Of(ms(t.Sub(m.res.Start)))
	}
	t := s.Usage.Timing
	q.Admitted, q.Loaded, q.Started = at(t.Admitted), at(t.Loaded), at(t.Computing)
	return q
}
