package workload

import (
	"fmt"
	"math/rand/v2"
)

// PrefixSet makes exact-id prompts of a prefix that may be cached and a tail that can not be. The same fields give the
// same ids on every machine.
//
// By construction: the prefixes of two groups differ in their first token (in their first few, when there are more
// groups than usable ids), so do the tails of two requests, and after these distinguishing tokens every id is drawn at
// random from a stream keyed by Seed and Salt. So nothing is shared but what is meant to be shared, and a run with
// another Salt shares nothing with this one beyond chance.
type PrefixSet struct {
	Requests  int
	Groups    int // distinct prefixes; request i has prefix i mod Groups; 0: each request its own
	PrefixLen int // tokens
	TailLen   int // tokens, at least 1: a server always computes one
	OutputLen int // tokens to ask for

	VocabLow  int // lowest usable id [0]
	VocabSize int // ids are below it; set it below the special tokens of the model
	Avoid     []int32

	Seed uint64 // of the study
	Salt uint64 // of the run, or of one repeat
}

// Validate reports what cannot be generated.
func (p PrefixSet) Validate() error {
	switch {
	case p.Requests < 1:
		return fmt.Errorf("a prefix set needs at least one request, not %d", p.Requests)
	case p.Groups < 0 || p.Groups > p.Requests:
		return fmt.Errorf("%d prefix groups for %d requests", p.Groups, p.Requests)
	case p.PrefixLen < 0 || p.TailLen < 1:
		return fmt.Errorf("a prefix of %d tokens and a tail of %d: the prefix must not be negative, the tail at least 1", p.PrefixLen, p.TailLen)
	case p.OutputLen < 0:
		return fmt.Errorf("%d output tokens", p.OutputLen)
	}
	n := len(p.usable())
	if n < 2 {
		return fmt.Errorf("only %d usable token ids in [%d, %d)", n, p.VocabLow, p.VocabSize)
	}
	if d := digits(p.groups(), n); p.PrefixLen > 0 && d > p.PrefixLen {
		return fmt.Errorf("%d tokens are too few to tell %d prefixes apart", p.PrefixLen, p.groups())
	}
	if d := digits(p.Requests, n); d > p.TailLen {
		return fmt.Errorf("%d tokens are too few to tell %d tails apart", p.TailLen, p.Requests)
	}
	return nil
}

// Items are the requests to measure: prefix and tail. Their prompts keep no memory of each other.
func (p PrefixSet) Items() ([]Item, error) {
	return p.make(p.Requests, func(i int, usable []int32) []int32 {
		ids := make([]int32, 0, p.PrefixLen+p.TailLen)
		ids = p.draw(ids, usable, 'p', i%p.groups(), p.groups(), p.PrefixLen)
		return p.draw(ids, usable, 't', i, p.Requests, p.TailLen)
	}, p.OutputLen)
}

// Primers are the prefixes alone, one for each group in order, asking for one token: what to send (or place) so that a
// prefix is known before the measured requests come. Without a prefix there are none.
func (p PrefixSet) Primers() ([]Item, error) {
	if p.PrefixLen == 0 {
		return nil, p.Validate()
	}
	return p.make(p.groups(), func(g int, usable []int32) []int32 {
		return p.draw(make([]int32, 0, p.PrefixLen), usable, 'p', g, p.groups(), p.PrefixLen)
	}, 1)
}

// Warmups are n prompts of the measured length that share nothing with the measured ones beyond chance.
func (p PrefixSet) Warmups(n int) ([]Item, error) {
	return p.make(n, func(i int, usable []int32) []int32 {
		return p.draw(make([]int32, 0, p.PrefixLen+p.TailLen), usable, 'w', i, n, p.PrefixLen+p.TailLen)
	}, p.OutputLen)
}

// Group is the prefix of request i.
func (p PrefixSet) Group(i int) int { return i % p.groups() }

func (p PrefixSet) groups() int {
	if p.Groups == 0 {
		return p.Requests
	}
	return p.Groups
}

func (p PrefixSet) make(n int, ids func(i int, usable []int32) []int32, output int) ([]Item, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	usable := p.usable()
	items := make([]Item, n)
	for i := range items {
		prompt := ids(i, usable)
		items[i] = Item{IDs: prompt, PromptLen: len(prompt), OutputLen: output}
	}
	return items, nil
}

// usable lists the ids that prompts may hold.
func (p PrefixSet) usable() []int32 {
	avoid := make(map[int32]bool, len(p.Avoid))
	for _, id := range p.Avoid {
		avoid[id] = true
	}
	var ids []int32
	for id := int32(max(p.VocabLow, 0)); int(id) < p.VocabSize; id++ {
		if !avoid[id] {
			ids = append(ids, id)
		}
	}
	return ids
}

// draw appends n tokens: first index's digits, each shifted by a salted amount so that runs differ from the first
// token on, then random ones. Two indices below count differ within their digits.
func (p PrefixSet) draw(ids, usable []int32, kind byte, index, count, n int) []int32 {
	if n == 0 {
		return ids
	}
	u := len(usable)
	shift := rand.New(rand.NewPCG(p.Seed^uint64(kind)<<56, p.Salt))
	body := rand.New(rand.NewPCG(p.Seed^uint64(kind)<<56^uint64(index+1), p.Salt^0x9e3779b97f4a7c15))
	end := len(ids) + n
	for range min(digits(count, u), n) {
		ids = append(ids, usable[(index+shift.IntN(u))%u])
		index /= u
	}
	for len(ids) < end {
		ids = append(ids, usable[body.IntN(u)])
	}
	return ids
}

// digits is how many base-u digits tell count numbers apart; at least one.
func digits(count, u int) int {
	d := 1
	for span := u; span < count; span *= u {
		d++
	}
	return d
}
