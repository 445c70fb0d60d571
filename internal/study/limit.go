package study

import (
	"fmt"

	"larder/internal/device"
	"larder/internal/record"
)

// limit sets the shortest time in which this machine could have served the row: the largest of what its ceilings allow,
// each as if it were the only one. Prefill counts every new token's operations, each weight read once in the burst and
// each cached token's KV once; answers beyond the first token read weights and KV once a step.
func (r *run) limit(row *record.Row, m *measured) {
	if r.env.Roofline == nil {
		row.LimitS, row.Share = record.Absent("no roofline model"), record.Absent("no roofline model")
		return
	}
	done := row.Requests - row.Failed
	if done == 0 || row.DurationS == 0 {
		row.LimitS, row.Share = record.Absent("no request succeeded"), record.Absent("no request succeeded")
		return
	}
	gemm, mem := r.ceiling(device.CeilingGEMM), r.ceiling(device.CeilingMemory)
	in := r.ceiling(device.CeilingHostToDev)
	if gemm*mem*in == 0 {
		row.LimitS, row.Share = record.Absent("a ceiling was not measured"), record.Absent("a ceiling was not measured")
		return
	}
	cached := (row.Cached.Device + row.Cached.Host) / done
	fresh := r.cfg.InputLen - cached
	token := float64(r.env.Layout.TokenBytes())
	compute := float64(done) * r.env.Roofline.PrefillFLOPs(fresh, cached) / gemm
	memory := (r.env.Roofline.DecodeBytes(done*fresh, 0) + float64(done*cached)*token) / mem
	// Stores run behind the answers and may end after them, so only loads set a limit.
	copies := row.LoadedBytes.Or(0) / in
	best := compute
	row.LimitBy = device.CeilingGEMM
	if memory > best {
		best, row.LimitBy = memory, device.CeilingMemory
	}
	if copies > best {
		best, row.LimitBy = copies, "copy"
	}
	if steps := r.decodeLimit(row, m, gemm, mem); steps > 0 {
		best += steps
		row.LimitBy = fmt.Sprintf("%s, then %s while decoding", row.LimitBy, device.CeilingMemory)
	}
	row.LimitS = record.Of(best)
	row.Share = record.Of(best / row.DurationS)
}

// decodeLimit is the least time of the steps after the first token.
func (r *run) decodeLimit(row *record.Row, m *measured, gemm, mem float64) float64 {
	if m.output < 2 {
		return 0
	}
	width := row.Requests - row.Failed
	rounds := 1.0
	if c := row.Concurrency; c > 0 && c < width {
		rounds, width = float64(width)/float64(c), c
	}
	s := 0.0
	for k := range m.output - 1 {
		at := r.cfg.InputLen + k
		s += max(r.env.Roofline.DecodeBytes(width, at)/mem, float64(width)*r.env.Roofline.PrefillFLOPs(1, at)/gemm)
	}
	return rounds * s
}

func (r *run) ceiling(name string) float64 {
	for _, c := range r.env.Ceilings {
		if c.Name == name {
			return c.Value
		}
	}
	return 0
}
