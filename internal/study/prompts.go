package study

import (
	"fmt"
	"slices"

	"larder/internal/arch"
	"larder/internal/workload"
)

// prompts are the measured requests of one repeat (or one decode or held-out run) and the prefixes that they share.
// All arms get the same.
type prompts struct {
	shared   int       // tokens of the prefix
	prefixes [][]int32 // one a group
	bursts   [][]prompt
}

// prompt is one measured request.
type prompt struct {
	ids   []int32
	group int
	salt  string // prefix-cache partition; empty except where sharing must be prevented
}

// salts tell apart the token streams of the parts of a study.
const (
	saltRepeat  = 1 << 20
	saltDecode  = 2 << 20
	saltHeldOut = 3 << 20
	saltWarmup  = 4 << 20
)

// makePrompts draws bursts of the given sizes. Request j of every burst has prefix j mod groups, and no two requests
// of all bursts have a tail in common, so that a burst never finds what an earlier one left.
func (r *run) makePrompts(salt uint64, shared int, sizes []int, output int) (*prompts, error) {
	most := slices.Max(sizes)
	groups, err := r.cfg.groups(most)
	if err != nil {
		return nil, err
	}
	low, high, avoid := usableIDs(r.env.Model)
	// Rounded up to whole groups, so that request j of each burst falls into the same group.
	stride := (most + groups - 1) / groups * groups
	set := workload.PrefixSet{
		Requests: stride * len(sizes), Groups: groups, PrefixLen: shared, TailLen: r.cfg.InputLen - shared, OutputLen: output,
		VocabLow: low, VocabSize: high, Avoid: avoid, Seed: r.cfg.Seed, Salt: r.cfg.Salt<<32 | salt,
	}
	items, err := set.Items()
	if err != nil {
		return nil, fmt.Errorf("prompts: %w", err)
	}
	primers, err := set.Primers()
	if err != nil {
		return nil, fmt.Errorf("prefixes: %w", err)
	}
	p := &prompts{shared: shared}
	for _, it := range primers {
		p.prefixes = append(p.prefixes, it.IDs)
	}
	for k, n := range sizes {
		burst := make([]prompt, n)
		for j := range burst {
			i := k*stride + j
			burst[j] = prompt{ids: items[i].IDs, group: set.Group(i)}
		}
		p.bursts = append(p.bursts, burst)
	}
	return p, nil
}

// usableIDs keeps prompts clear of the model's special tokens: Qwen3 has them at the end of the vocabulary, from
// below the first EOS id on.
func usableIDs(m *arch.Config) (low, high int, avoid []int32) {
	high = m.VocabSize
	for _, id := range m.EOSTokenIDs {
		if int(id) > m.VocabSize/2 {
			high = min(high, int(id))
		}
	}
	if high > 1000 {
		high -= 2 // <|endoftext|> and its kin stand just below <|im_end|>
	}
	return 0, high, m.EOSTokenIDs
}

// only is p with one burst and the prefixes of that burst.
func (p *prompts) only(k int) *prompts {
	out := &prompts{shared: p.shared}
	number := map[int]int{}
	burst := make([]prompt, len(p.bursts[k]))
	for i, q := range p.bursts[k] {
		g, known := number[q.group]
		if !known {
			g = len(out.prefixes)
			number[q.group] = g
			out.prefixes = append(out.prefixes, p.prefixes[q.group])
		}
		burst[i] = prompt{ids: q.ids, group: g, salt: q.salt}
	}
	out.bursts = [][]prompt{burst}
	return out
}

// groupsUsed are the prefixes that a burst needs, in order.
func (p *prompts) groupsUsed(burst []prompt) [][]int32 {
	var ids [][]int32
	seen := map[int]bool{}
	for _, q := range burst {
		if !seen[q.group] {
			seen[q.group] = true
			ids = append(ids, p.prefixes[q.group])
		}
	}
	return ids
}

// items are the requests as the load generator wants them.
func items(burst []prompt, output int) []workload.Item {
	out := make([]workload.Item, len(burst))
	for i, q := range burst {
		out[i] = workload.Item{IDs: q.ids, PromptLen: len(q.ids), OutputLen: output}
		if q.salt != "" {
			out[i].Extra = map[string]any{"cache_salt": q.salt}
		}
	}
	return out
}
