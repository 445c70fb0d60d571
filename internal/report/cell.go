package report

import (
	"slices"

	"larder/internal/record"
	"larder/internal/stats"
)

// cell is one arm at one batch size: its repeats, reduced. Latencies are pooled over the requests of all repeats,
// rates are of all tokens over all time, shares and splits are means over the repeats.
type cell struct {
	Arm, Name string
	Batch     int
	Repeats   int
	Requests  int // in all repeats, without failed ones
	Failed    int

	Duration   record.Number // s, mean
	InputPerS  record.Number
	OutputPerS record.Number
	Each       []float64 // input tokens a second of each repeat
	TTFT       record.Summary
	TTFTs      []float64 // ms, sorted
	EachTTFT   []float64 // mean TTFT of each repeat
	TPOT       record.Number
	Share      record.Number
	LimitBy    string
	Limit      record.Number // s, mean
	Split      record.Split

	Speedup *record.Comparison // of the burst's duration against recompute; nil for recompute itself
}

// cells reduces the paired rows, largest batch first and arms in order within it.
func cells(s *record.Study) []cell {
	var out []cell
	for _, b := range batches(s.Rows) {
		for _, arm := range armOrder {
			var rows []*record.Row
			for i := range s.Rows {
				if r := &s.Rows[i]; r.Batch == b && r.Arm == arm {
					rows = append(rows, r)
				}
			}
			if len(rows) > 0 {
				c := reduce(rows)
				c.Speedup = find(s, b, arm, record.Recompute, "duration_s")
				out = append(out, c)
			}
		}
	}
	return out
}

// batches are the sizes that occur, largest first.
func batches(rows []record.Row) []int {
	var sizes []int
	for i := range rows {
		if !slices.Contains(sizes, rows[i].Batch) {
			sizes = append(sizes, rows[i].Batch)
		}
	}
	slices.Sort(sizes)
	slices.Reverse(sizes)
	return sizes
}

func find(s *record.Study, batch int, a, b, metric string) *record.Comparison {
	for i := range s.Comparisons {
		if c := &s.Comparisons[i]; c.Batch == batch && c.A == a && c.B == b && c.Metric == metric {
			return c
		}
	}
	return nil
}

// reduce makes one cell of one or more rows of one kind.
func reduce(rows []*record.Row) cell {
	c := cell{Arm: rows[0].Arm, Name: armName(rows[0].Arm), Batch: rows[0].Batch, Repeats: len(rows)}
	var seconds, in, out, tpotSum float64
	tpotN := 0
	for _, r := range rows {
		c.Failed += r.Failed
		c.Requests += r.Requests - r.Failed
		seconds += r.DurationS
		in += float64(r.InputTokens)
		out += float64(r.OutputTokens)
		if v, ok := r.InputPerS.Get(); ok {
			c.Each = append(c.Each, v)
		}
		if v, ok := r.TTFT.Mean.Get(); ok {
			c.EachTTFT = append(c.EachTTFT, v)
		}
		if v, ok := r.TPOT.Mean.Get(); ok {
			tpotSum += v * float64(r.TPOT.N)
			tpotN += r.TPOT.N
		}
		c.TTFTs = append(c.TTFTs, ttfts(r)...)
		if r.LimitBy != "" {
			c.LimitBy = r.LimitBy
		}
	}
	slices.Sort(c.TTFTs)
	c.Duration = record.Of(seconds / float64(len(rows)))
	c.InputPerS, c.OutputPerS = record.Absent("no request succeeded"), record.Absent("no request succeeded")
	if c.Requests > 0 && seconds > 0 {
		c.InputPerS, c.OutputPerS = record.Of(in/seconds), record.Of(out/seconds)
	}
	c.TTFT = summarize(c.TTFTs)
	c.TPOT = record.Absent(rows[0].TPOT.Reason)
	if tpotN > 0 {
		c.TPOT = record.Of(tpotSum / float64(tpotN))
	}
	c.Share = mean(rows, func(r *record.Row) record.Number { return r.Share })
	c.Limit = mean(rows, func(r *record.Row) record.Number { return r.LimitS })
	c.Split = record.Split{
		Queue:   mean(rows, func(r *record.Row) record.Number { return r.Split.Queue }),
		Load:    mean(rows, func(r *record.Row) record.Number { return r.Split.Load }),
		Compute: mean(rows, func(r *record.Row) record.Number { return r.Split.Compute }),
		Outside: mean(rows, func(r *record.Row) record.Number { return r.Split.Outside }),
	}
	return c
}

// ttfts are the times to first token of a row's requests, in ms.
func ttfts(r *record.Row) []float64 {
	var xs []float64
	for i := range r.Detail {
		q := &r.Detail[i]
		sent, ok1 := q.SentMS.Get()
		first, ok2 := q.FirstMS.Get()
		if ok1 && ok2 && q.Error == "" {
			xs = append(xs, first-sent)
		}
	}
	return xs
}

// mean is the mean of a number over rows; absent where it is absent in all of them.
func mean(rows []*record.Row, get func(*record.Row) record.Number) record.Number {
	var xs []float64
	why := ""
	for _, r := range rows {
		if v, ok := get(r).Get(); ok {
			xs = append(xs, v)
		} else {
			why = get(r).Why()
		}
	}
	if v, ok := stats.Mean(xs).Get(); ok {
		return record.Of(v)
	}
	return record.Absent(why)
}

// summarize reduces sorted values.
func summarize(xs []float64) record.Summary {
	at := func(p float64) record.Number {
		v := stats.Percentile(xs, p)
		if x, ok := v.Get(); ok {
			return record.Of(x)
		}
		return record.Absent(v.Why())
	}
	s := record.Summary{N: len(xs), Min: at(0), P50: at(50), P90: at(90), P99: at(99), Max: at(100)}
	v := stats.Mean(xs)
	s.Mean = record.Absent(v.Why())
	if x, ok := v.Get(); ok {
		s.Mean = record.Of(x)
	}
	return s
}
