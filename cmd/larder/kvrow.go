package main

import (
	"fmt"
	"slices"

	"larder/internal/kvbench"
	"larder/internal/record"
	"larder/internal/stats"
)

// kvRow turns a transfer benchmark into a study's row: the duplex phase's metrics, and the two directions alone.
func kvRow(res *kvbench.Result) record.KVRow {
	c := &res.Config
	row := record.KVRow{
		Name:        fmt.Sprintf("%d requests of %d tokens", c.Requests, c.Tokens),
		Requests:    c.Requests,
		InFlight:    min(c.InFlight, c.Requests),
		BytesPerWay: c.BytesPerRequest(),
	}
	for i := range res.Phases {
		p := &res.Phases[i]
		switch p.Direction {
		case kvbench.Load:
			row.LoadAloneGiBs = phaseMean(p, "batch_load_bw_gib_s")
		case kvbench.Store:
			row.StoreAloneGiBs = phaseMean(p, "batch_store_bw_gib_s")
		case kvbench.Duplex:
			row.Pieces = p.Pieces
			row.SubmitMS = phaseMean(p, "submit_ms")
			duplexRow(&row, p)
		}
	}
	return row
}

// duplexRow fills the document's ten metrics.
func duplexRow(row *record.KVRow, p *kvbench.Phase) {
	for name, to := range map[string]*record.Summary{
		"load_span_ms": &row.LoadSpanMS, "store_span_ms": &row.StoreSpanMS, "e2e_ms": &row.E2EMS,
		"load_active_sum_ms": &row.LoadActiveMS, "store_active_sum_ms": &row.StoreActiveMS,
		"load_bw_gib_s": &row.LoadGiBs, "store_bw_gib_s": &row.StoreGiBs, "duplex_bw_gib_s": &row.DuplexGiBs,
		"batch_makespan_ms": &row.MakespanMS, "batch_duplex_bw_gib_s": &row.BatchGiBs,
	} {
		if m, ok := p.Find(name); ok {
			*to = summary(m.Samples)
		} else {
			to.Reason = "not measured"
		}
	}
	row.Share = record.Absent("no ceiling was measured")
	if m, ok := p.Find("batch_duplex_bw_gib_s"); ok && m.Share > 0 {
		row.Share = record.Of(m.Share)
	}
}

func phaseMean(p *kvbench.Phase, name string) record.Number {
	m, ok := p.Find(name)
	if !ok {
		return record.Absent("not measured")
	}
	return number(m.Mean())
}

// summary is a sample as the record keeps it.
func summary(samples []float64) record.Summary {
	sorted := slices.Sorted(slices.Values(samples))
	at := func(p float64) record.Number { return number(stats.Percentile(sorted, p)) }
	return record.Summary{
		N: len(samples), Mean: number(stats.Mean(samples)), Min: at(0), P50: at(50), P90: at(90), P99: at(99), Max: at(100),
	}
}

func number(v stats.Value) record.Number {
	x, ok := v.Get()
	if !ok {
		return record.Absent(v.Why())
	}
	return record.Of(x)
}
