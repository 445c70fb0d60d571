package workload

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

// pair is the first two turns of a conversation.
type pair struct{ prompt, reply string }

// readShareGPT reads a JSON list of {"conversations": [{"value": …}, …]} and keeps the first two turns of those that
// have two.
func readShareGPT(path string) ([]pair, error) {
	if path == "" {
		return nil, errors.New("this data set needs a ShareGPT file: give --dataset-path FILE (a JSON list of conversations); nothing is downloaded")
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("data set: %w", err)
	}
	type turn struct {
		Value *string `json:"value"`
	}
	var rows []struct {
		Conversations *[]turn `json:"conversations"`
		Conversation  []turn  `json:"conversation"`
	}
	if err := json.Unmarshal(b, &rows); err != nil {
		return nil, fmt.Errorf("data set %s: not a JSON list of conversations: %w", path, err)
	}
	var pairs []pair
	for i, r := range rows {
		turns := r.Conversation
		if r.Conversations != nil {
			turns = *r.Conversations
		}
		if len(turns) < 2 {
			continue
		}
		if turns[0].Value == nil || turns[1].Value == nil {
			return nil, fmt.Errorf("data set %s: conversation %d has a turn without \"value\"", path, i)
		}
		pairs = append(pairs, pair{*turns[0].Value, *turns[1].Value})
	}
	if len(pairs) == 0 {
		return nil, fmt.Errorf("data set %s: none of its %d conversations has two turns", path, len(rows))
	}
	return pairs, nil
}

// readCustom reads JSON lines of {"conversations": [{"content": …}, …]} ("conversation" and "value" will do, too) and
// keeps the first two turns. bad counts the lines that are no JSON; the reference leaves them out without a word.
func readCustom(path string) (pairs []pair, bad int, err error) {
	if path == "" {
		return nil, 0, errors.New("this data set needs its file: give --dataset-path FILE (JSON lines)")
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, 0, fmt.Errorf("data set: %w", err)
	}
	type turn struct {
		Content *string `json:"content"`
		Value   string  `json:"value"`
	}
	text := func(t turn) string {
		if t.Content != nil {
			return *t.Content
		}
		return t.Value
	}
	for line := range bytes.Lines(b) {
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		var r struct {
			Conversations *[]turn `json:"conversations"`
			Conversation  []turn  `json:"conversation"`
		}
		if json.Unmarshal(line, &r) != nil {
			bad++
			continue
		}
		turns := r.Conversation
		if r.Conversations != nil {
			turns = *r.Conversations
		}
		if len(turns) >= 2 {
			pairs = append(pairs, pair{text(turns[0]), text(turns[1])})
		}
	}
	if len(pairs) == 0 {
		return nil, bad, fmt.Errorf("data set %s: no line has a conversation of two turns (%d lines are no JSON)", path, bad)
	}
	return pairs, bad, nil
}

// ShareGPTSpec asks for the data sets sharegpt and custom.
type ShareGPTSpec struct {
	Requests   int
	Path       string
	OutputLen  int    // 0: the length of the real reply; else at least 4
	ContextLen int    // drop pairs that are longer; 0: keep all
	Suffix     string // put at the end of each prompt
}

func (spec ShareGPTSpec) validate(tok Tokenizer) error {
	switch {
	case tok == nil:
		return errNeedsTokenizer
	case spec.Requests < 1:
		return fmt.Errorf("%d requests: at least one is needed", spec.Requests)
	case spec.OutputLen != 0 && spec.OutputLen < 4:
		return fmt.Errorf("a fixed output length of %d is too small: at least 4", spec.OutputLen)
	}
	return nil
}

// ShareGPT is the data set sharegpt: real prompts, replies as long as the real ones.
func (s *Sampler) ShareGPT(spec ShareGPTSpec, tok Tokenizer) (*Set, error) {
	if err := spec.validate(tok); err != nil {
		return nil, err
	}
	pairs, err := readShareGPT(spec.Path)
	if err != nil {
		return nil, err
	}
	return s.conversations(pairs, spec, tok)
}

// Custom is the data set custom: as ShareGPT, from JSON lines.
func (s *Sampler) Custom(spec ShareGPTSpec, tok Tokenizer) (*Set, error) {
	if err := spec.validate(tok); err != nil {
		return nil, err
	}
	pairs, bad, err := readCustom(spec.Path)
	if err != nil {
		return nil, err
	}
	set, err := s.conversations(pairs, spec, tok)
	if err == nil && bad > 0 {
		set.Notes = append(set.Notes, fmt.Sprintf("%d lines of %s are no JSON and were left out", bad, spec.Path))
	}
	return set, err
}

// conversations makes items of shuffled pairs that fit the asked lengths.
func (s *Sampler) conversations(pairs []pair, spec ShareGPTSpec, tok Tokenizer) (*Set, error) {
	shuffle(&s.python, pairs)
	var items []Item
	var in, out []int
	for _, p := range pairs {
		if len(items) == spec.Requests {
			break
		}
		if spec.Suffix != "" {
			p.prompt = strings.TrimSuffix(p.prompt, "Assistant:") + spec.Suffix + "Assistant:"
		}
		promptLen, outputLen := len(tok.Encode(p.prompt)), spec.OutputLen
		if outputLen == 0 {
			outputLen = len(tok.Encode(p.reply))
		}
		if promptLen < 2 || outputLen < 2 || spec.ContextLen > 0 && promptLen+outputLen > spec.ContextLen {
			continue
		}
		items = append(items, Item{Text: p.prompt})
		in, out = append(in, promptLen), append(out, outputLen)
	}
	if len(items) == 0 {
		return nil, fmt.Errorf("data set %s: no conversation fits the asked lengths", spec.Path)
	}
	return lengthSet(items, in, out), nil
}
