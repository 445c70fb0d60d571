package tokenizer

import (
	"errors"
	"fmt"
	"strings"
	"sync"
)

// build makes the tokenizer of what the file says. Merges take half of the time, so the rest is done beside them.
func (f *file) build(s *scanner) (*Tokenizer, error) {
	t := &Tokenizer{}
	if err := f.buildVocab(&t.vocab); err != nil {
		return nil, fmt.Errorf("model: vocab: %w", err)
	}
	var mergesErr error
	var merging sync.WaitGroup
	merging.Go(func() { t.merges, mergesErr = f.buildMerges(s, &t.vocab) })
	text, textErr := newRuneTable()
	t.text = text
	t.vocab.decode()
	t.seams = newSeams(t.vocab.bytes)
	merging.Wait()
	if textErr != nil {
		return nil, textErr
	}
	if mergesErr != nil {
		return nil, fmt.Errorf("model: %w", mergesErr)
	}
	if err := f.buildAdded(t); err != nil {
		return nil, fmt.Errorf("added_tokens: %w", err)
	}
	return t, nil
}

// buildVocab copies the tokens, so that the file's text can go.
func (f *file) buildVocab(v *vocabulary) error {
	largest, size := int32(-1), 0
	for _, e := range f.vocab {
		largest, size = max(largest, e.id), size+len(e.token)
	}
	if int(largest) >= 2*len(f.vocab)+maxHoles {
		return fmt.Errorf("id %d among %d tokens", largest, len(f.vocab))
	}
	v.base, v.ids = len(f.vocab), make(map[string]int32, len(f.vocab)+64)
	v.grow(int(largest) + 1)
	var all strings.Builder
	all.Grow(size)
	for _, e := range f.vocab {
		all.WriteString(e.token)
	}
	tokens := all.String()
	for _, e := range f.vocab {
		token := tokens[:len(e.token)]
		tokens = tokens[len(token):]
		if v.written[e.id] != "" {
			return fmt.Errorf("id %d is both %q and %q", e.id, v.written[e.id], token)
		}
		v.written[e.id], v.ids[token] = token, e.id
	}
	if len(v.ids) != v.base || v.written == nil {
		return errors.New("the same token twice, or none")
	}
	return nil
}

// maxHoles is how many unused ids a small vocabulary may have, beyond one for each token.
const maxHoles = 1 << 16

func (v *vocabulary) grow(n int) {
	more := n - len(v.written)
	v.written = append(v.written, make([]string, more)...)
	v.bytes = append(v.bytes, make([]string, more)...)
	v.special = append(v.special, make([]bool, more)...)
}

// decode fills v.bytes.
func (v *vocabulary) decode() {
	levels, size := byteLevel(), 0
	for _, token := range v.written {
		size += len(token)
	}
	raw := make([]byte, 0, size) // bytes are never more than the characters that stand for them
	ends := make([]int, len(v.written))
	for id, token := range v.written {
		raw = appendDecoded(raw, token, levels)
		ends[id] = len(raw)
	}
	all, start := string(raw), 0
	for id, end := range ends {
		v.bytes[id] = all[start:end]
		start = end
	}
}

func (f *file) buildMerges(s *scanner, v *vocabulary) (mergeTable, error) {
	var bytes [256]int32
	for b, r := range byteLevel().runes {
		id, ok := v.ids[string(r)]
		if !ok {
			return mergeTable{}, fmt.Errorf("vocab: no token for byte 0x%02X", b)
		}
		bytes[b] = id
	}
	t := newMergeTable(len(v.written), bytes)
	s.i = f.merges
	var joined []byte
	whole := int32(-1)
	err := eachMerge(s, func(a, b string) error {
		joined = append(append(joined[:0], a...), b...)
		left, ok1 := v.ids[a]
		right, ok2 := v.ids[b]
		whole++ // in most files merges are in the order of what they make, which saves a look-up
		ok3 := v.has(whole) && v.written[whole] == string(joined)
		if !ok3 {
			whole, ok3 = v.ids[string(joined)]
		}
		if !ok1 || !ok2 || !ok3 {
			return fmt.Errorf("%q and %q: a part or the whole is not in the vocabulary", a, b)
		}
		return t.add(left, right, whole)
	})
	if err != nil {
		return t, fmt.Errorf("merges: %w", err)
	}
	return t, nil
}

// eachMerge reads the list of merges, each a pair or, in older files, two tokens with a space between.
func eachMerge(s *scanner, merge func(a, b string) error) error {
	return s.items('[', ']', func() error {
		c, err := s.peek()
		if err != nil {
			return err
		}
		if c == '"' {
			pair, err := s.text()
			a, b, ok := strings.Cut(pair, " ")
			if err == nil && (!ok || strings.Contains(b, " ")) {
				err = fmt.Errorf("%q is no pair", pair)
			}
			if err != nil {
				return err
			}
			return merge(a, b)
		}
		var pair [2]string
		n := 0
		if err := s.items('[', ']', func() error {
			if n == len(pair) {
				return errors.New("more than two tokens")
			}
			var err error
			pair[n], err = s.text()
			n++
			return err
		}); err != nil {
			return err
		}
		if n != len(pair) {
			return errors.New("fewer than two tokens")
		}
		return merge(pair[0], pair[1])
	})
}

// buildAdded takes the added tokens in, which must have the ids that the reference would give them: a token of the
// vocabulary keeps its own, any other the next free one.
func (f *file) buildAdded(t *Tokenizer) error {
	v := &t.vocab
	next, levels := int32(v.base), byteLevel()
	for _, a := range f.added {
		switch {
		case a.Content == "":
			return fmt.Errorf("token %d is empty", a.ID)
		case a.SingleWord || a.LStrip || a.RStrip || isNot(a.Normalized, false):
			return fmt.Errorf("%q: single_word, lstrip, rstrip and normalized are not supported", a.Content)
		}
		want, known := v.ids[a.Content]
		if !known {
			want = next
		}
		if a.ID != want {
			return fmt.Errorf("%q has id %d, which the reference would make %d", a.Content, a.ID, want)
		}
		if a.ID >= maxIDs {
			return fmt.Errorf("ids from %d on are not supported", maxIDs)
		}
		if !v.has(a.ID) {
			v.grow(int(a.ID) + 1)
		}
		next = max(next, a.ID+1)
		v.written[a.ID], v.ids[a.Content] = a.Content, a.ID
		v.bytes[a.ID] = string(appendDecoded(nil, a.Content, levels))
		v.special[a.ID] = v.special[a.ID] || a.Special // listed twice, it stays special, as the reference has it
		t.added.add(a.Content, a.ID)
	}
	return nil
}
