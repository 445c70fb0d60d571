package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Load reads a tokenizer.json, or the one in a folder. What cannot be reproduced exactly is refused with an error of
// one line that names the file and the field.
func Load(path string) (*Tokenizer, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "tokenizer.json")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	t, err := parse(string(data))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// file is a tokenizer.json in the order in which it is used. The scanner s.i of vocab and merges is where they start.
type file struct {
	vocab   []entry
	merges  int // offset of the list, 0 if there is none
	added   []addedEntry
	checked map[string]bool // by field
}

type entry struct {
	token string
	id    int32
}

type addedEntry struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized *bool  `json:"normalized"`
	Special    bool   `json:"special"`
}

func parse(data string) (*Tokenizer, error) {
	s := &scanner{s: data}
	f := file{checked: map[string]bool{}}
	if err := s.object(func(key string) error { return inField(key, f.field(s, key)) }); err != nil {
		return nil, err
	}
	if _, err := s.peek(); err == nil {
		return nil, fmt.Errorf("offset %d: more after the end", s.i)
	}
	for _, key := range []string{"normalizer", "pre_tokenizer", "decoder", "model.type", "model.vocab", "model.merges"} {
		if !f.checked[key] {
			return nil, fmt.Errorf("no %s", key)
		}
	}
	return f.build(s)
}

func inField(key string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// field reads one field of the file, or refuses it.
func (f *file) field(s *scanner, key string) error {
	if f.checked[key] {
		return errors.New("there twice")
	}
	f.checked[key] = true
	switch key {
	case "version":
		return accept(s, `"1.0"`)
	case "truncation", "padding":
		return accept(s, `null`)
	case "added_tokens":
		return s.value(&f.added)
	case "normalizer":
		return accept(s, `{"type":"NFC"}`)
	case "pre_tokenizer":
		return acceptPreTokenizer(s)
	case "post_processor":
		return acceptByteLevel(s, true)
	case "decoder":
		return acceptByteLevel(s, false)
	case "model":
		return s.object(func(key string) error { return inField(key, f.modelField(s, key)) })
	}
	return errors.New("not supported")
}

func (f *file) modelField(s *scanner, key string) error {
	f.checked["model."+key] = true
	switch key {
	case "type":
		return accept(s, `"BPE"`)
	case "dropout", "unk_token":
		return accept(s, `null`)
	case "continuing_subword_prefix", "end_of_word_suffix":
		return accept(s, `null`, `""`)
	case "fuse_unk": // without an unknown token it means nothing
		return accept(s, `false`, `true`)
	case "byte_fallback", "ignore_merges":
		return accept(s, `false`)
	case "vocab":
		return f.readVocab(s)
	case "merges": // read when the vocabulary is known, which may come later
		s.peek()
		f.merges = s.i
		return eachMerge(s, func(_, _ string) error { return nil })
	}
	return errors.New("not supported")
}

// accept reads a value that must be one of those wanted, which are compact JSON.
func accept(s *scanner, wanted ...string) error {
	var raw json.RawMessage
	if err := s.value(&raw); err != nil {
		return err
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return err
	}
	if !slices.Contains(wanted, compact.String()) {
		return fmt.Errorf("%.80s is not supported, only %s", compact.String(), wanted[0])
	}
	return nil
}

// component is a pre-tokenizer, post-processor or decoder; pointers tell false from absent.
type component struct {
	Type           string       `json:"type"`
	AddPrefixSpace *bool        `json:"add_prefix_space"`
	TrimOffsets    *bool        `json:"trim_offsets"` // does not change ids
	UseRegex       *bool        `json:"use_regex"`
	Pattern        *pattern     `json:"pattern"`
	Behavior       string       `json:"behavior"`
	Invert         bool         `json:"invert"`
	Parts          []*component `json:"pretokenizers"`
}

type pattern struct {
	Regex  string
	String string
}

func (c *component) byteLevel() bool {
	return c != nil && c.Type == "ByteLevel" && c.Pattern == nil && c.Behavior == "" && c.Parts == nil
}

func acceptPreTokenizer(s *scanner) error {
	var c component
	if err := s.value(&c); err != nil {
		return err
	}
	if c.Type != "Sequence" || len(c.Parts) != 2 {
		return errors.New("only a Sequence of Split and ByteLevel is supported")
	}
	split, level := c.Parts[0], c.Parts[1]
	switch {
	case split == nil || split.Type != "Split" || split.Pattern == nil || split.Behavior != "Isolated" || split.Invert:
		return errors.New("only a Split that isolates a Regex is supported")
	case split.Pattern.Regex != splitPattern:
		return errors.New("only Qwen's split pattern is supported")
	case !level.byteLevel() || isNot(level.AddPrefixSpace, false) || isNot(level.UseRegex, false):
		return errors.New("only ByteLevel without prefix space and regex is supported")
	}
	return nil
}

// isNot tells whether a flag is absent or not as wanted.
func isNot(flag *bool, want bool) bool { return flag == nil || *flag != want }

// acceptByteLevel reads a decoder or post-processor, whose flags change nothing that is used here.
func acceptByteLevel(s *scanner, optional bool) error {
	var c *component
	if err := s.value(&c); err != nil {
		return err
	}
	if c == nil && optional || c.byteLevel() {
		return nil
	}
	return errors.New("only ByteLevel is supported")
}

func (f *file) readVocab(s *scanner) error {
	f.vocab = make([]entry, 0, len(s.s)/64)
	return s.object(func(token string) error {
		id, err := s.id()
		f.vocab = append(f.vocab, entry{token, id})
		return err
	})
}
