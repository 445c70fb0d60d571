package study

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"larder/internal/record"
)

// newRecord starts the record with all that is known before the first request.
func (r *run) newRecord(start time.Time) *record.Study {
	s := &record.Study{
		Schema: record.Schema, Tool: r.env.Tool, Started: start.UTC().Truncate(time.Second),
		Host: r.host(), Model: r.model(), Workload: r.workload(),
		Rows: []record.Row{}, KV: slices.Clone(r.env.KV), KVReason: r.env.KVReason, Published: published(), Notes: r.notes(),
	}
	for i := range s.KV {
		record.Explain(&s.KV[i], "not measured by the KV benchmark")
	}
	if len(s.KV) == 0 && s.KVReason == "" {
		s.KVReason = "the KV load and store benchmark was not run"
	}
	for _, c := range r.env.Ceilings {
		s.Ceilings = append(s.Ceilings, record.Ceiling{Name: c.Name, Value: c.Value, Unit: c.Unit, How: c.How})
	}
	return s
}

func (r *run) host() record.Host {
	h, d := r.env.Host, r.env.Device
	if d.Kind == "cpu" && h.CPU == "" {
		h.CPU = d.Name
	}
	if d.Kind == "cpu" && h.MemoryBytes == 0 {
		h.MemoryBytes = d.MemoryBytes
	}
	h.Device, h.DeviceName, h.Units, h.Kernels, h.TierNote = d.Kind, d.Name, d.Units, d.Kernels, d.TierNote
	return h
}

func (r *run) model() record.Model {
	m, l := r.env.Model, r.env.Layout
	return record.Model{
		Name: m.Name, Layers: m.NumLayers, LayersFull: max(r.env.FullLayers, m.NumLayers), Weights: r.env.Weights,
		DType: l.DType.String(), WeightBytes: r.env.WeightBytes, BlockTokens: l.BlockTokens, TokenBytes: l.TokenBytes(),
	}
}

func (r *run) workload() record.Workload {
	c := r.cfg
	prefixes := c.Prefixes
	if prefixes == "" {
		prefixes = "own"
	}
	return record.Workload{
		Preset: c.Preset, InputLen: c.InputLen, SharedLen: r.shared, HitRate: float64(r.shared) / float64(c.InputLen),
		OutputLen: c.OutputLen, BatchSizes: slices.Clone(c.BatchSizes), Repeats: c.Repeats, Arms: slices.Clone(c.Arms), Interleave: cmp.Or(c.Interleave, "repeat"), Order: [][]string{},
		Prefixes: prefixes, Seed: c.Seed, Salt: uint32(c.Salt), WritePolicy: r.env.WritePolicy, Decode: append([]record.DecodeRun{}, c.Decode...),
		Transport: "HTTP on loopback, native API, exact token ids, streamed",
	}
}

// notes say what a reader could otherwise take wrong.
func (r *run) notes() []string {
	notes := []string{
		"All arms of a repeat get the same token ids: same prefixes, same tails. A burst's requests are all due at once, so mean TTFT is mostly a queue, as in the document.",
		"Before each burst the prefixes are put into exactly one tier (recompute: none) and every prompt's residency is read back.",
		fmt.Sprintf("The server stores new KV to host memory by the policy %q in every arm alike; in the host arm prefixes are loaded and new KV is stored at once.", r.env.WritePolicy),
		"Share of limit is the shortest time that the measured ceilings allow over the time taken. The limit takes compute, memory and copies as if each ran alone and nothing else cost anything.",
	}
	if n, full := r.env.Model.NumLayers, r.env.FullLayers; full > n {
		notes = append(notes, fmt.Sprintf("%d of the model's %d layers are served; every prompt token goes through the whole layer.", n, full))
	}
	if !r.cfg.own() {
		notes = append(notes, "Requests share prefixes. In the recompute arm each has a cache partition of its own, so that none hits what another has just computed.")
	}
	return notes
}
