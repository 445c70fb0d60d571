package workload

import (
	"errors"
	"fmt"
	"math"
)

// SharedPrefixSpec asks for the data set generated-shared-prefix: groups of prompts that share a system prompt.
type SharedPrefixSpec struct {
	Groups          int
	PromptsPerGroup int
	SystemLen       int     // tokens of the shared part, nominal
	QuestionLen     int     // tokens of the own part, nominal
	OutputLen       int     // tokens to ask for
	RangeRatio      float64 // 1: exactly these lengths
	ZipfAlpha       float64 // 0: each group equally often; else groups are drawn with p ~ 1/rank^alpha
	Ordered         bool    // keep group after group; else shuffled
	FastPrepare     bool    // do not encode the prompts again: their reported length is 1, as in the reference
	SendIDs         bool    // send exact ids (our reading: what is drawn is what is sent)
	VocabSize       int     // ids are drawn below it when there is no tokenizer
	RoutingKey      string  // non-empty: each request carries RoutingKey_group
}

func (g SharedPrefixSpec) validate() error {
	switch {
	case g.Groups < 1 || g.PromptsPerGroup < 1:
		return fmt.Errorf("%d groups of %d prompts: at least one of each is needed", g.Groups, g.PromptsPerGroup)
	case g.SystemLen < 0 || g.QuestionLen < 0 || g.OutputLen < 0:
		return errors.New("the lengths of a shared-prefix data set must not be negative")
	case g.SystemLen+g.QuestionLen < 1:
		return errors.New("a shared-prefix data set needs a system prompt or a question")
	case g.ZipfAlpha < 0 || math.IsNaN(g.ZipfAlpha) || math.IsInf(g.ZipfAlpha, 0):
		return fmt.Errorf("zipf alpha %v must be a finite number above 0", g.ZipfAlpha)
	}
	return checkRatio("range ratio", g.RangeRatio)
}

// SharedPrefix draws the data set. PromptLen is what the text encodes to, or the number of ids.
func (s *Sampler) SharedPrefix(g SharedPrefixSpec, tok Tokenizer) (*Set, error) {
	if err := g.validate(); err != nil {
		return nil, err
	}
	if tok == nil && !g.SendIDs {
		return nil, errNeedsTokenizer
	}
	vocab, err := sharedVocab(g, tok)
	if err != nil {
		return nil, err
	}
	n := g.Groups * g.PromptsPerGroup
	systemLens := s.numpy.lens(g.SystemLen, g.RangeRatio, g.Groups)
	questionLens := s.numpy.lens(g.QuestionLen, g.RangeRatio, n)
	outputLens := s.numpy.lens(g.OutputLen, g.RangeRatio, n)
	systems, questions := s.pieces(vocab, systemLens), s.pieces(vocab, questionLens)

	group := make([]int, n)
	for i := range group {
		group[i] = i / g.PromptsPerGroup
	}
	if g.ZipfAlpha > 0 {
		group = zipf(s.seed, g.Groups, g.ZipfAlpha, n)
	}
	items := joinPieces(g, tok, systems, questions, group)
	for i := range items {
		items[i].OutputLen = outputLens[i]
	}
	notes := sharedNotes(g, items, systemLens, questionLens)
	if !g.Ordered {
		shuffle(&s.python, items)
	}
	return &Set{Items: items, Notes: notes}, nil
}

func sharedVocab(g SharedPrefixSpec, tok Tokenizer) ([]int32, error) {
	if tok != nil {
		return tok.IDs(), nil
	}
	if g.VocabSize < 1 {
		return nil, errors.New("exact ids without a tokenizer need --vocab-size")
	}
	ids := make([]int32, g.VocabSize)
	for i := range ids {
		ids[i] = int32(i)
	}
	return ids, nil
}

// pieces draws one run of ids for each length.
func (s *Sampler) pieces(vocab []int32, lens []int) [][]int32 {
	out := make([][]int32, len(lens))
	for i, n := range lens {
		out[i] = s.python.choices(vocab, n)
	}
	return out
}

// joinPieces makes the prompts: ids joined as they are, or decoded pieces with an empty line between.
func joinPieces(g SharedPrefixSpec, tok Tokenizer, systems, questions [][]int32, group []int) []Item {
	items := make([]Item, len(group))
	var texts []string
	if !g.SendIDs {
		texts = make([]string, len(systems))
		parallel(len(systems), func(i int) { texts[i] = tok.Decode(systems[i]) })
	}
	parallel(len(items), func(i int) {
		it := &items[i]
		if g.RoutingKey != "" {
			it.RoutingKey = fmt.Sprintf("%s_%d", g.RoutingKey, group[i])
		}
		if g.SendIDs {
			system := systems[group[i]]
			it.IDs = append(append(make([]int32, 0, len(system)+len(questions[i])), system...), questions[i]...)
			it.PromptLen = len(it.IDs)
			return
		}
		it.Text = texts[group[i]] + "\n\n" + tok.Decode(questions[i])
		it.PromptLen = 1
		if !g.FastPrepare {
			it.PromptLen = len(tok.Encode(it.Text))
		}
	})
	return items
}

// sharedNotes are the reference's lines about the data set, with the nominal averages of the pieces.
func sharedNotes(g SharedPrefixSpec, items []Item, systemLens, questionLens []int) []string {
	dist := "uniform"
	if g.ZipfAlpha > 0 {
		dist = "zipf"
	}
	notes := []string{
		"Generated shared prefix dataset statistics:",
		fmt.Sprintf("Number of groups: %d", g.Groups),
		fmt.Sprintf("Prompts per group: %d", g.PromptsPerGroup),
		"Number of turns: 1",
		"Group distribution: " + dist,
	}
	if g.ZipfAlpha > 0 {
		notes = append(notes, fmt.Sprintf("Zipf alpha: %v", g.ZipfAlpha))
	}
	notes = append(notes, fmt.Sprintf("Total prompts: %d", len(items)))
	if g.FastPrepare && !g.SendIDs {
		return notes
	}
	var in, out int
	for _, it := range items {
		in, out = in+it.PromptLen, out+it.OutputLen
	}
	return append(notes,
		fmt.Sprintf("Total input tokens: %d", in),
		fmt.Sprintf("Total output tokens: %d", out),
		fmt.Sprintf("Average system prompt length: %.1f tokens (drawn)", average(systemLens)),
		fmt.Sprintf("Average question length: %.1f tokens (drawn)", average(questionLens)))
}

func average(xs []int) float64 {
	var sum int
	for _, x := range xs {
		sum += x
	}
	return float64(sum) / float64(len(xs))
}
