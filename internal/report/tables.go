package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"larder/internal/record"
)

func decodeTable(s *record.Study) figure {
	f := figure{Title: "Decode, prefix in HBM", Head: []string{"Run", "In flight", "Output tok/s", "TTFT mean ms", "TPOT mean ms", "ITL p50 ms", "ITL p99 ms", "ITL max ms", "Of limit"}}
	for i := range s.Decode {
		r := &s.Decode[i]
		f.Rows = append(f.Rows, []string{decodeName(r), inFlight(r), show(r.OutputPerS, whole), show(r.TTFT.Mean, short), show(r.TPOT.Mean, short),
			show(r.ITL.P50, short), show(r.ITL.P99, short), show(r.ITL.Max, short), show(r.Share, percent)})
	}
	if len(s.Decode) == 0 {
		f.Text = "No decode run was measured."
	}
	f.dropEmpty()
	return f
}

// dropEmpty takes out the last column when nothing is known in it.
func (f *figure) dropEmpty() {
	last := len(f.Head) - 1
	for _, r := range f.Rows {
		if r[last] != none {
			return
		}
	}
	f.Head = f.Head[:last]
	for i := range f.Rows {
		f.Rows[i] = f.Rows[i][:last]
	}
}

func kvTable(s *record.Study) figure {
	f := figure{Title: "KV load and store alone", Head: []string{"Run", "Each way", "In flight", "Load ms", "Store ms", "E2E ms", "Makespan ms", "Duplex", "Of ceiling"}}
	for i := range s.KV {
		k := &s.KV[i]
		gib := func(v float64) string { return short(v) + " GiB/s" }
		f.Rows = append(f.Rows, []string{k.Name, fmt.Sprintf("%d × %s", k.Requests, bytesOf(float64(k.BytesPerWay))), fmt.Sprint(k.InFlight),
			show(k.LoadSpanMS.Mean, short), show(k.StoreSpanMS.Mean, short), show(k.E2EMS.Mean, short), show(k.MakespanMS.Mean, short), show(k.BatchGiBs.Mean, gib), show(k.Share, percent)})
	}
	if foreign(s) {
		return figure{}
	}
	f.Text = "The transfers of the host arm without a server: spans are first start to last end of one direction in one request, makespan is over the batch."
	if len(s.KV) == 0 {
		f.Text = "Not measured: " + s.KVReason + "."
	}
	return f
}

func comparisonTable(s *record.Study) figure {
	f := figure{Title: "Paired comparisons", Text: "Each repeat of one arm against the same repeat of the other, which had the same prompts. An arm is called faster only when the 95 % interval excludes 1.",
		Head: []string{"Batch", "Of", "Against", "Measure", "Times as fast", "Saves ms", "Verdict"}}
	for i := range s.Comparisons {
		c := &s.Comparisons[i]
		measure := "burst"
		if c.Metric == "ttft_mean_ms" {
			measure = "mean TTFT"
		}
		f.Rows = append(f.Rows, []string{fmt.Sprint(c.Batch), armName(c.A), armName(c.B), measure, ranged(c.Speedup, ratio), ranged(c.DiffMS, short), inWords(c)})
	}
	if len(f.Rows) == 0 {
		f.Text = ""
	}
	return f
}

// ranged is a mean with its interval, or with the reason why there is none.
func ranged(i record.Interval, f func(float64) string) string {
	if !i.Lo.OK() || !i.Hi.OK() {
		return show(i.Mean, f) + " (no interval: " + i.Reason + ")"
	}
	return fmt.Sprintf("%s (%s to %s)", show(i.Mean, f), show(i.Lo, f), show(i.Hi, f))
}

func ratio(v float64) string { return fmt.Sprintf("%.2f", v) }

func inWords(c *record.Comparison) string {
	switch c.Verdict {
	case record.VerdictA:
		return armName(c.A) + " is faster"
	case record.VerdictB:
		return armName(c.B) + " is faster"
	case record.VerdictOpen:
		return "cannot be told apart"
	}
	return c.Verdict
}

func fitTable(s *record.Study) figure {
	t := &s.BreakEven.Fit
	f := figure{Title: "How far the duration model can be trusted", Head: []string{"Held out", "Arm", "Batch", "Prefix", "Predicted s", "Measured s", "Error"}}
	if !t.MeanError.OK() && len(t.HeldOut) == 0 {
		f.Text = "There is no model: " + t.MeanError.Why() + "."
		return f
	}
	f.Text = fmt.Sprintf("Duration = %s + %s a request + %s a TFLOP computed + %s a GiB loaded, fitted to %d bursts. Each line is a burst that the model had not seen; mean error %s, largest %s.",
		show(t.FixedS, seconds), show(t.SPerRequest, seconds), show(t.SPerTFLOP, seconds), show(t.SPerGiB, seconds), t.Points, show(t.MeanError, percent), show(t.MaxError, percent))
	for _, n := range []record.Number{t.FixedS, t.SPerRequest, t.SPerTFLOP, t.SPerGiB} {
		if v, ok := n.Get(); ok && v == 0 {
			f.Notes = []string{"A coefficient of 0 means that its cost is too small to be seen in the durations of these bursts."}
		}
	}
	for _, h := range t.HeldOut {
		f.Rows = append(f.Rows, []string{h.What, armName(h.Arm), fmt.Sprint(h.Batch), whole(float64(h.SharedLen)), short(h.PredictedS), short(h.MeasuredS), fmt.Sprintf("%+.1f %%", 100*h.Error)})
	}
	return f
}

func seconds(v float64) string {
	if v < 1 {
		return short(1000*v) + " ms"
	}
	return short(v) + " s"
}

// mapTable shows what the model predicts for other hit rates: how many times as fast as recomputing.
func mapTable(s *record.Study) figure {
	f := figure{Title: "Other hit rates, predicted", Head: []string{"Hit rate"},
		Text: fmt.Sprintf("How many times as fast as recomputing a burst would be, by the duration model (its error stands below): with the prefix in host memory / in HBM. Prompts of %s tokens.", whole(float64(s.Workload.InputLen)))}
	batches := s.Workload.BatchSizes
	for _, b := range batches {
		f.Head = append(f.Head, fmt.Sprintf("Batch %d: host / HBM", b))
	}
	var rates []float64
	cells := map[float64]map[int]string{}
	for _, c := range s.BreakEven.Map {
		if cells[c.HitRate] == nil {
			rates, cells[c.HitRate] = append(rates, c.HitRate), map[int]string{}
		}
		cells[c.HitRate][c.Batch] = fmt.Sprintf("%.2f / %.2f", c.RecomputeS/c.HostS, c.RecomputeS/c.HBMS)
	}
	for _, h := range rates {
		row := []string{percent(h)}
		for _, b := range batches {
			row = append(row, cmp.Or(cells[h][b], none))
		}
		f.Rows = append(f.Rows, row)
	}
	if len(f.Rows) == 0 {
		return figure{}
	}
	return f
}

// publishedTable sets the document's tokens a second beside ours, largest batch first, each with its ratio to its own
// recompute arm, which says more across machines than the rates do.
func publishedTable(s *record.Study, cs []cell) figure {
	f := figure{Title: "Beside the published figures", Text: s.Published.Note, Head: []string{"Source", "Batch", "Arm", "Output tokens", "Input tok/s", "Output tok/s", "Against its recompute"}}
	type line struct {
		batch, output int
		cells         []string
	}
	var lines []line
	for i := range s.Published.Rows {
		r := &s.Published.Rows[i]
		in := show(r.InputPerS, whole)
		if !r.InputPerS.OK() {
			in = "transfer only"
		}
		lines = append(lines, line{r.Batch, r.OutputLen, []string{"document", fmt.Sprint(r.Batch), armName(r.Arm), fmt.Sprint(r.OutputLen), in, show(r.OutputPerS, short), publishedRatio(s, r)}})
	}
	if len(lines) == 0 {
		return figure{}
	}
	for i := range cs {
		c := &cs[i]
		gain, _ := speedup(c.Speedup)
		lines = append(lines, line{c.Batch, s.Workload.OutputLen, []string{"this study", fmt.Sprint(c.Batch), c.Name, fmt.Sprint(s.Workload.OutputLen), show(c.InputPerS, whole), show(c.OutputPerS, short), gain}})
	}
	for i := range s.Decode {
		r := &s.Decode[i]
		out := r.OutputTokens / max(r.Requests-r.Failed, 1)
		lines = append(lines, line{r.Batch, out, []string{"this study", fmt.Sprint(r.Batch), armName(r.Arm), fmt.Sprint(out), show(r.InputPerS, whole), show(r.OutputPerS, short), none}})
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Or(cmp.Compare(a.output, b.output), cmp.Compare(b.batch, a.batch)) })
	for _, l := range lines {
		f.Rows = append(f.Rows, l.cells)
	}
	return f
}

func publishedRatio(s *record.Study, r *record.PublishedRow) string {
	in, ok := r.InputPerS.Get()
	if !ok || r.Arm == record.Recompute {
		return none
	}
	for i := range s.Published.Rows {
		p := &s.Published.Rows[i]
		if base, ok := p.InputPerS.Get(); ok && p.Arm == record.Recompute && p.Batch == r.Batch && p.OutputLen == r.OutputLen {
			return times(in / base)
		}
	}
	return none
}

func ceilingTable(s *record.Study) figure {
	if foreign(s) {
		return figure{}
	}
	f := figure{Title: "Ceilings of this machine", Text: "Measured in the same run; every share of limit is against these.", Head: []string{"Ceiling", "Measured", "How"}}
	for _, c := range s.Ceilings {
		f.Rows = append(f.Rows, []string{ceilingName(c.Name), rate(c), c.How})
	}
	if len(f.Rows) == 0 {
		f.Text = "No ceiling was measured, so there are no shares of a limit."
	}
	return f
}

// limitName is what sets a limit, in words; it may name two ceilings in a sentence.
func limitName(by string) string {
	return strings.NewReplacer("gemm", "matrix product", "memory_read", "memory read", "copy", "copy from host").Replace(by)
}

func ceilingName(name string) string {
	known := map[string]string{"gemm": "Matrix product", "memory_read": "Memory read", "host_to_device": "Host to device", "device_to_host": "Device to host", "copy_duplex": "Both ways at once"}
	if n, ok := known[name]; ok {
		return n
	}
	return name
}

// aboutMachine adds what served the requests.
func aboutMachine(s *record.Study, add func(what, value string)) {
	m, h := &s.Model, &s.Host
	if foreign(s) {
		add("Model", m.Name)
		add("Server", h.DeviceName)
		if m.TokenBytes > 0 {
			add("KV", bytesOf(float64(m.TokenBytes))+" a token, by the server's counters")
		}
		add("Client", fmt.Sprintf("%s/%s, %s, %s", h.OS, h.Arch, count(h.Cores, "core"), h.GoVersion))
		return
	}
	add("Model", fmt.Sprintf("%s, %d of %d layers, %s weights of %s", m.Name, m.Layers, m.LayersFull, m.Weights, bytesOf(float64(m.WeightBytes))))
	add("KV", fmt.Sprintf("%s, %s a token, blocks of %d tokens", m.DType, bytesOf(float64(m.TokenBytes)), m.BlockTokens))
	add("Device", fmt.Sprintf("%s (%s), kernels %s, %d units", h.DeviceName, h.Device, h.Kernels, h.Units))
	add("Host", fmt.Sprintf("%s/%s, %s, %s, %s", h.OS, h.Arch, h.CPU, count(h.Cores, "core"), h.GoVersion))
}

// aboutTable is what one needs to repeat the study.
func aboutTable(s *record.Study) figure {
	w := &s.Workload
	f := figure{Title: "Model, machine and seeds", Head: []string{"What", "Value"}}
	add := func(what, value string) {
		if value != "" {
			f.Rows = append(f.Rows, []string{what, value})
		}
	}
	aboutMachine(s, add)
	add("Prompts", fmt.Sprintf("preset %s, seed %d, salt %d, prefixes %s, write policy %s", w.Preset, w.Seed, w.Salt, w.Prefixes, w.WritePolicy))
	for i, o := range w.Order {
		names := make([]string, len(o))
		for k, arm := range o {
			names[k] = armName(arm)
		}
		add(fmt.Sprintf("Turn %d (each %s)", i+1, w.Interleave), strings.Join(names, ", then "))
	}
	add("Transport", w.Transport)
	return f
}
