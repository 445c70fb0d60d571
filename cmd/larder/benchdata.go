package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"larder/internal/loadgen"
	"larder/internal/tokenizer"
	"larder/internal/workload"
)

// benchTokenizer fits the tokenizer to what data sets ask for.
type benchTokenizer struct{ t *tokenizer.Tokenizer }

func (b *benchTokenizer) Encode(text string) []int32 { return b.t.Encode(text, nil) }

func (b *benchTokenizer) Decode(ids []int32) string { return b.t.Decode(ids, false) }

func (b *benchTokenizer) VocabSize() int { return b.t.BaseVocabSize() }

// IDs are all ids, added tokens too; byte-level vocabularies have no holes.
func (b *benchTokenizer) IDs() []int32 {
	ids := make([]int32, b.t.VocabSize())
	for i := range ids {
		ids[i] = int32(i)
	}
	return ids
}

// SpecialTokensAdded is 0: the tokenizers that are supported put nothing around a text.
func (b *benchTokenizer) SpecialTokensAdded() int { return 0 }

func (b *benchTokenizer) count(text string) int { return len(b.Encode(text)) }

// loadTokenizer finds the tokenizer: as asked, the server's own if it is on this machine, else what `make data`
// fetched. Without one, nil: then only exact ids can be sent.
func (c *benchCmd) loadTokenizer(ctx context.Context, control *loadgen.Control, log io.Writer) (*benchTokenizer, error) {
	path := c.Tokenizer
	if path == "" && c.VocabSize > 0 {
		return nil, nil
	}
	if path == "" {
		if path = findTokenizer("", control.TokenizerPath(ctx)); path == "" {
			return nil, nil
		}
		fmt.Fprintf(log, "tokenizer: %s (--tokenizer PATH chooses another)\n", path)
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "tokenizer.json")
	}
	t, err := tokenizer.Load(path)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	return &benchTokenizer{t}, nil
}

// workload draws the data set, then the arrivals and adapters, as the reference does; cfg gets the arrivals.
func (c *benchCmd) workload(cfg *loadgen.Config, tok *benchTokenizer, log io.Writer) (*workload.Set, error) {
	s, err := workload.NewSampler(c.Seed)
	if err != nil {
		return nil, err
	}
	var t workload.Tokenizer // stays nil without a tokenizer
	if tok != nil {
		t = tok
	}
	set, err := c.dataset(s, t)
	if err != nil {
		return nil, err
	}
	for _, n := range set.Notes {
		fmt.Fprintln(log, n)
	}
	items := set.Items
	due, adapters, err := s.Plan(len(items), c.arrival(), workload.Adapters{Names: c.LoRA, Distribution: c.LoRADist, Alpha: c.LoRAAlpha})
	if err != nil {
		return nil, err
	}
	if !c.trace() {
		cfg.Due = due
	}
	for i, name := range adapters {
		items[i].Extra = map[string]any{"lora_path": name}
		if c.Backend != "sglang" && c.Backend != "sglang-native" {
			items[i].Extra["model"] = name
		}
	}
	return set, nil
}

func (c *benchCmd) arrival() workload.Arrival {
	a := workload.Arrival{Rate: c.Rate, Burstiness: c.Burstiness, Constant: c.Constant}
	if c.Ramp != "none" {
		a.Ramp, a.RampFrom, a.RampTo = c.Ramp, c.RampFrom, c.RampTo
	}
	return a
}

func (c *benchCmd) dataset(s *workload.Sampler, tok workload.Tokenizer) (*workload.Set, error) {
	random := workload.RandomSpec{Requests: c.Prompts, InputLen: c.RandIn, OutputLen: c.RandOut, RangeRatio: c.RandRange,
		Path: c.Path, SendIDs: c.SendIDs, VocabSize: c.VocabSize}
	switch c.Dataset {
	case "prefix_repetition", "mooncake", "azure", "burstgpt":
		return c.exact(tok)
	case "custom":
		return s.Custom(c.conversations(), tok)
	case "random":
		return s.Random(random, tok)
	case "random-ids":
		return s.RandomIDs(random, tok)
	case "sharegpt":
		return s.ShareGPT(c.conversations(), tok)
	case "generated-shared-prefix":
		g := workload.SharedPrefixSpec{Groups: c.GSPGroups, PromptsPerGroup: c.GSPPrompts, SystemLen: c.GSPSystem, QuestionLen: c.GSPQuestion,
			OutputLen: c.GSPOutput, RangeRatio: c.GSPRange, ZipfAlpha: c.GSPZipf, Ordered: c.GSPOrdered, FastPrepare: c.GSPFast, SendIDs: c.SendIDs, VocabSize: c.VocabSize}
		if c.GSPRouting {
			g.RoutingKey = fmt.Sprintf("%08x_%s", os.Getpid(), time.Now().Format("20060102150405"))
		}
		return s.SharedPrefix(g, tok)
	}
	return nil, errors.New("unknown data set " + c.Dataset) // validate let nothing else through
}

func (c *benchCmd) conversations() workload.ShareGPTSpec {
	return workload.ShareGPTSpec{Requests: c.Prompts, Path: c.Path, OutputLen: c.GPTOutput, ContextLen: c.GPTContext, Suffix: c.Suffix}
}

// exact makes the data sets that are made of exact ids; as text they are decoded, and are then no longer exact.
func (c *benchCmd) exact(tok workload.Tokenizer) (*workload.Set, error) {
	vocab, salt := c.VocabSize, c.Salt
	if tok != nil {
		vocab = tok.VocabSize()
	}
	if vocab == 0 || tok == nil && !c.SendIDs {
		return nil, errors.New("this data set needs a tokenizer (--tokenizer PATH), or --tokenize-prompt --vocab-size N")
	}
	if salt == 0 {
		salt = rand.Uint64()
	}
	set, err := c.exactSet(vocab, salt)
	if err != nil {
		return nil, err
	}
	set.Notes = append(set.Notes, fmt.Sprintf("tokens made with --salt %d", salt))
	if !c.SendIDs {
		workload.Decode(set.Items, tok)
		workload.Decode(set.Primers, tok)
	}
	return set, nil
}

func (c *benchCmd) exactSet(vocab int, salt uint64) (*workload.Set, error) {
	if c.trace() {
		return workload.Trace(workload.TraceSpec{Kind: c.Dataset, Path: c.Path, Requests: c.Prompts, Slowdown: c.Slowdown, VocabSize: vocab, Seed: c.Seed, Salt: salt})
	}
	prefixes := workload.PrefixSet{Requests: c.Prompts, Groups: c.RepPrefixes, PrefixLen: c.RepPrefix, TailLen: c.RepSuffix, OutputLen: c.RepOutput,
		VocabSize: vocab, Seed: c.Seed, Salt: salt}
	items, err := prefixes.Items()
	if err != nil {
		return nil, err
	}
	primers, err := prefixes.Primers()
	return &workload.Set{Items: items, Primers: primers}, err
}
