package study

import "larder/internal/record"

// published are the rows of the document that the project reproduces: Qwen3-30B-A3B, one layer, prompts of about
// 10,770 tokens of which 90 % could be shared. Source: the serving benchmark blocks and transfer lines of that
// document.
func published() record.Published {
	p := record.Published{Note: "From the document that this study reproduces: Qwen3-30B-A3B, one layer, about 10,770 input tokens, 90 % shared. " +
		"Its hardware is not stated, so only tokens per second are set beside ours, and its host rows are bare transfers of unequal bytes, not serving runs."}
	const one = "one output token"
	for _, s := range []struct {
		arm                             string
		batch, output                   int
		duration, in, out, ttft, p99, n float64
	}{
		{record.Recompute, 64, 1, 6.72, 102723.18, 9.53, 3643.94, 6631.43, 34.73},
		{record.HBMArm, 64, 1, 1.71, 400765.71, 37.42, 1614.17, 1671.31, 60.40},
		{record.Recompute, 32, 1, 3.37, 102300.13, 9.49, 1838.71, 3312.94, 17.45},
		{record.HBMArm, 32, 1, 0.91, 381280.93, 35.20, 832.16, 885.53, 29.29},
		{record.Recompute, 16, 1, 1.67, 103294.50, 9.59, 939.30, 1639.29, 9.01},
		{record.HBMArm, 16, 1, 0.55, 315664.04, 29.31, 435.05, 527.57, 12.75},
		{record.Recompute, 8, 1, 0.84, 102167.27, 9.48, 495.13, 823.00, 4.70},
		{record.HBMArm, 8, 1, 0.29, 299517.17, 27.94, 246.18, 273.03, 6.88},
	} {
		p.Rows = append(p.Rows, record.PublishedRow{Arm: s.arm, Batch: s.batch, OutputLen: s.output,
			DurationS: record.Of(s.duration), InputPerS: record.Of(s.in), OutputPerS: record.Of(s.out),
			TTFTMean: record.Of(s.ttft), TTFTP99: record.Of(s.p99), TPOTMean: record.Absent(one), InFlight: record.Of(s.n)})
	}
	for _, d := range []struct {
		batch                                          int
		duration, in, out, ttft, p99, tpot, concurrent float64
	}{
		{64, 3.90, 176574.38, 4202.86, 1327.44, 1385.15, 9.98, 63.59},
		{256, 34.08, 81278.96, 1922.91, 534.14, 1149.65, 6.23, 15.95},
	} {
		p.Rows = append(p.Rows, record.PublishedRow{Arm: record.HBMArm, Batch: d.batch, OutputLen: 256,
			DurationS: record.Of(d.duration), InputPerS: record.Of(d.in), OutputPerS: record.Of(d.out),
			TTFTMean: record.Of(d.ttft), TTFTP99: record.Of(d.p99), TPOTMean: record.Of(d.tpot), InFlight: record.Of(d.concurrent)})
	}
	none := record.Absent("a bare transfer: no tokens were served")
	for _, h := range []struct {
		batch int
		ms    float64
	}{{64, 233.095}, {32, 215.377}, {16, 109.506}, {8, 81.669}} {
		p.Rows = append(p.Rows, record.PublishedRow{Arm: record.HostArm, Batch: h.batch, OutputLen: 1, DurationS: record.Of(h.ms / 1000),
			InputPerS: none, OutputPerS: none, TTFTMean: none, TTFTP99: none, TPOTMean: none, InFlight: none})
	}
	return p
}
