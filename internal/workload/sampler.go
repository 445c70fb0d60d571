package workload

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
)

// Sampler draws the reference's data sets and arrivals. Like the reference it seeds two generators once and lets every
// draw move them on, so the order of calls matters: the data set first, then the arrivals.
type Sampler struct {
	seed   uint64
	numpy  numpyRand
	python pythonRand
}

// NewSampler seeds both generators. The seed must fit 32 bits, as numpy demands.
func NewSampler(seed uint64) (*Sampler, error) {
	if seed > math.MaxUint32 {
		return nil, fmt.Errorf("seed %d is outside 0 to %d", seed, uint32(math.MaxUint32))
	}
	s := &Sampler{seed: seed}
	s.numpy.t.seedWord(uint32(seed))
	s.python.seed(seed)
	return s, nil
}

// Set is a data set: its items and the lines that the reference prints about it.
type Set struct {
	Items   []Item
	Primers []Item // the shared prefixes alone: sent before, they make the prefixes known; nil where none are defined
	Notes   []string
}

// RandomSpec asks for the data sets random and random-ids.
type RandomSpec struct {
	Requests            int
	InputLen, OutputLen int     // nominal tokens
	RangeRatio          float64 // lengths are uniform from this share of the nominal one up to it
	Path                string  // ShareGPT file for random; unused for random-ids
	SendIDs             bool    // send ids, not text
	VocabSize           int     // for random-ids without a tokenizer; with one it is the tokenizer's
}

func (r RandomSpec) validate() error {
	switch {
	case r.Requests < 1:
		return fmt.Errorf("%d requests: at least one is needed", r.Requests)
	case r.InputLen < 1:
		return fmt.Errorf("input length %d must be at least 1", r.InputLen)
	case r.OutputLen < 0:
		return fmt.Errorf("output length %d is negative", r.OutputLen)
	}
	return checkRatio("range ratio", r.RangeRatio)
}

// lengths draws all input lengths, then all output lengths. In text mode the special tokens that the server will add
// are taken off.
func (s *Sampler) lengths(r RandomSpec, tok Tokenizer) (in, out []int) {
	in = s.numpy.lens(r.InputLen, r.RangeRatio, r.Requests)
	out = s.numpy.lens(r.OutputLen, r.RangeRatio, r.Requests)
	if !r.SendIDs {
		for i := range in {
			in[i] = max(1, in[i]-tok.SpecialTokensAdded())
		}
	}
	return in, out
}

var errNeedsTokenizer = errors.New("text prompts need a tokenizer (--tokenizer FILE); --tokenize-prompt sends exact token ids without one")

// RandomIDs is the data set random-ids: runs of neighbouring ids from a random offset. PromptLen is the nominal
// length; as text the server sees more tokens, because decoding and encoding is not the identity.
func (s *Sampler) RandomIDs(r RandomSpec, tok Tokenizer) (*Set, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	if tok == nil && !r.SendIDs {
		return nil, errNeedsTokenizer
	}
	vocab := r.VocabSize
	if tok != nil {
		vocab = tok.VocabSize()
	}
	if vocab < 1 {
		return nil, errors.New("random-ids needs the size of the vocabulary: give a tokenizer or --vocab-size")
	}
	in, out := s.lengths(r, tok)
	ids := make([][]int32, r.Requests)
	for i := range ids {
		offset := s.numpy.integer(0, vocab)
		ids[i] = make([]int32, in[i])
		for j := range ids[i] {
			ids[i][j] = int32((offset + i + j) % vocab)
		}
	}
	return lengthSet(prompts(ids, r.SendIDs, tok), in, out), nil
}

// Random is the data set random: ShareGPT's first turns, cut or repeated to the drawn lengths. It has fewer items than
// asked when the file runs out. PromptLen is the nominal length.
func (s *Sampler) Random(r RandomSpec, tok Tokenizer) (*Set, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	if tok == nil {
		return nil, errNeedsTokenizer
	}
	in, out := s.lengths(r, tok)
	pairs, err := readShareGPT(r.Path)
	if err != nil {
		return nil, err
	}
	shuffle(&s.python, pairs)
	var ids [][]int32
	for _, p := range pairs {
		if len(ids) == r.Requests {
			break
		}
		if t := tok.Encode(p.prompt); len(t) > 0 {
			ids = append(ids, repeatTo(t, in[len(ids)]))
		}
	}
	return lengthSet(prompts(ids, r.SendIDs, tok), in, out), nil
}

// repeatTo cuts or repeats ids to n tokens.
func repeatTo(ids []int32, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = ids[i%len(ids)]
	}
	return out
}

// prompts makes items of ids, as ids or decoded.
func prompts(ids [][]int32, sendIDs bool, tok Tokenizer) []Item {
	items := make([]Item, len(ids))
	if sendIDs {
		for i := range items {
			items[i].IDs = ids[i]
		}
		return items
	}
	parallel(len(ids), func(i int) { items[i].Text = tok.Decode(ids[i]) })
	return items
}

// lengthSet fills in the nominal lengths and the two lines that the reference prints.
func lengthSet(items []Item, in, out []int) *Set {
	var sumIn, sumOut int
	for i := range items {
		items[i].PromptLen, items[i].OutputLen = in[i], out[i]
		sumIn, sumOut = sumIn+in[i], sumOut+out[i]
	}
	return &Set{Items: items, Notes: []string{fmt.Sprintf("#Input tokens: %d", sumIn), fmt.Sprintf("#Output tokens: %d", sumOut)}}
}

// parallel runs f(0..n-1) on all cores and waits.
func parallel(n int, f func(i int)) {
	var wg sync.WaitGroup
	workers := min(runtime.GOMAXPROCS(0), n)
	for w := range workers {
		wg.Go(func() {
			for i := w; i < n; i += workers {
				f(i)
			}
		})
	}
	wg.Wait()
}

// Decode turns items of ids into items of text, on all cores. What a server makes of the text is not these ids again.
func Decode(items []Item, tok Tokenizer) {
	parallel(len(items), func(i int) {
		if items[i].IDs != nil {
			items[i].Text, items[i].IDs = tok.Decode(items[i].IDs), nil
		}
	})
}
