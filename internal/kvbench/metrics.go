package kvbench

import (
	"encoding/json"
	"slices"
	"time"

	"larder/internal/stats"
)

const gib = 1 << 30

// Metric is one figure over its samples: requests for those named per request, batches for those named batch.
type Metric struct {
	Name    string
	Unit    string
	Samples []float64
	Share   float64 // of the ceiling measured in the same run; 0: there is none for it
}

// Mean is the samples' mean.
func (m Metric) Mean() stats.Value { return stats.Mean(m.Samples) }

// Percentile is by linear interpolation.
func (m Metric) Percentile(p float64) stats.Value {
	return stats.Percentile(slices.Sorted(slices.Values(m.Samples)), p)
}

// MarshalJSON gives the figures beside the samples that they come from. A share that does not exist is null.
func (m Metric) MarshalJSON() ([]byte, error) {
	out := struct {
		Name    string      `json:"name"`
		Unit    string      `json:"unit"`
		N       int         `json:"n"`
		Mean    stats.Value `json:"mean"`
		P50     stats.Value `json:"p50"`
		P99     stats.Value `json:"p99"`
		Share   *float64    `json:"share"`
		Samples []float64   `json:"samples"`
	}{m.Name, m.Unit, len(m.Samples), m.Mean(), m.Percentile(50), m.Percentile(99), nil, m.Samples}
	if m.Share > 0 {
		out.Share = &m.Share
	}
	return json.Marshal(out)
}

// batch is one measured batch of requests.
type batch struct {
	requests []request
	wall     time.Duration // host: first submit to last completion seen
}

// bounds is first start to last end over the batch, on the device's clock.
func (b *batch) bounds() (start, end time.Duration) {
	first := true
	for i := range b.requests {
		for _, s := range []*span{&b.requests[i].load, &b.requests[i].store} {
			if s.batches == 0 {
				continue
			}
			if first || s.start < start {
				start = s.start
			}
			end = max(end, s.end)
			first = false
		}
	}
	return start, end
}

func (b *batch) bytes() (load, store int64) {
	for i := range b.requests {
		load += b.requests[i].load.bytes
		store += b.requests[i].store.bytes
	}
	return load, store
}

// e2e is first start to last end of both directions of one request.
func (r *request) e2e() time.Duration {
	switch {
	case r.store.batches == 0:
		return r.load.end - r.load.start
	case r.load.batches == 0:
		return r.store.end - r.store.start
	}
	return max(r.load.end, r.store.end) - min(r.load.start, r.store.start)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// bandwidth is in GiB/s.
func bandwidth(bytes int64, d time.Duration) float64 {
	return float64(bytes) / gib / d.Seconds()
}

// perRequest are the metrics with one sample per request:
//
//	load_span, store_span    first start to last end of one direction
//	e2e                      first start to last end of both
//	load_active_sum, …       sum of the durations of the batches that were handed over
//	load_bw, store_bw        bytes of the direction / its span
//	duplex_bw                bytes of both directions / e2e
var perRequest = []struct {
	name, unit string
	needs      Direction
	of         func(*request) float64
}{
	{"load_span_ms", "ms", Load, func(r *request) float64 { return ms(r.load.end - r.load.start) }},
	{"store_span_ms", "ms", Store, func(r *request) float64 { return ms(r.store.end - r.store.start) }},
	{"e2e_ms", "ms", 0, func(r *request) float64 { return ms(r.e2e()) }},
	{"load_active_sum_ms", "ms", Load, func(r *request) float64 { return ms(r.load.active) }},
	{"store_active_sum_ms", "ms", Store, func(r *request) float64 { return ms(r.store.active) }},
	{"load_bw_gib_s", "GiB/s", Load, func(r *request) float64 { return bandwidth(r.load.bytes, r.load.end-r.load.start) }},
	{"store_bw_gib_s", "GiB/s", Store, func(r *request) float64 { return bandwidth(r.store.bytes, r.store.end-r.store.start) }},
	{"duplex_bw_gib_s", "GiB/s", Duplex, func(r *request) float64 { return bandwidth(r.load.bytes+r.store.bytes, r.e2e()) }},
}

// metrics turns a phase's batches into figures, in the document's order and then ours.
func metrics(d Direction, batches []batch, ceiling float64) []Metric {
	var out []Metric
	for _, p := range perRequest {
		if p.needs&d != p.needs {
			continue
		}
		m := Metric{Name: p.name, Unit: p.unit}
		for i := range batches {
			for j := range batches[i].requests {
				m.Samples = append(m.Samples, p.of(&batches[i].requests[j]))
			}
		}
		out = append(out, m)
	}
	return append(out, perBatch(d, batches, ceiling)...)
}

const makespanName = "batch_makespan_ms"

// batchRateName is the name of the batch's bandwidth in a phase.
func batchRateName(d Direction) string {
	switch d {
	case Load:
		return "batch_load_bw_gib_s"
	case Store:
		return "batch_store_bw_gib_s"
	}
	return "batch_duplex_bw_gib_s"
}

// perBatch are the metrics with one sample per batch: makespan is first start to last end over the batch, the batch's
// bandwidth is all bytes / makespan, in_flight is the mean number of requests that were moving (sum of e2e / makespan),
// batch_wall is the host's time from the first submit to the last completion seen. submit, one sample per request, is
// the host time spent in handing its moves over.
func perBatch(d Direction, batches []batch, ceiling float64) []Metric {
	makespan := Metric{Name: makespanName, Unit: "ms"}
	bw := Metric{Name: batchRateName(d), Unit: "GiB/s"}
	flight := Metric{Name: "in_flight", Unit: "requests"}
	submit := Metric{Name: "submit_ms", Unit: "ms"}
	wall := Metric{Name: "batch_wall_ms", Unit: "ms"}
	for i := range batches {
		b := &batches[i]
		start, end := b.bounds()
		load, store := b.bytes()
		makespan.Samples = append(makespan.Samples, ms(end-start))
		bw.Samples = append(bw.Samples, bandwidth(load+store, end-start))
		wall.Samples = append(wall.Samples, ms(b.wall))
		var moving time.Duration
		for j := range b.requests {
			moving += b.requests[j].e2e()
			submit.Samples = append(submit.Samples, ms(b.requests[j].submit))
		}
		flight.Samples = append(flight.Samples, moving.Seconds()/(end-start).Seconds())
	}
	if mean, ok := bw.Mean().Get(); ok && ceiling > 0 {
		bw.Share = mean * gib / ceiling
	}
	return []Metric{makespan, bw, flight, submit, wall}
}
