package server

import (
	"strconv"

	"larder/internal/api"
	"larder/internal/infer"
)

// Backend is what a ready server serves.
type Backend struct {
	Generator infer.Generator
	Control   infer.Control
	Tokenizer Tokenizer // nil: token ids only
	Model     Model
}

// Model is what clients may know about the model.
type Model struct {
	Path          string // as given to the program
	TokenizerPath string
	TokenizerNote string // why there is no tokenizer and how to get its data
	LoadFormat    string
	Type          string // model_type of config.json
	Architectures []string
	VocabSize     int
	ContextLength int // tokens of prompt and answer together
	MaxTotal      int // tokens of KV that the device tier holds; 0: unknown
	Defaults      api.SamplingDefaults
}

// room is the most tokens that prompt and answer may have together.
func (m *Model) room() int {
	if m.MaxTotal > 0 {
		return min(m.ContextLength, m.MaxTotal)
	}
	return m.ContextLength
}

// idText stands in for a Detokenizer where there is no tokenizer: ids in decimal with spaces between, so that clients
// that wait for text see some.
type idText struct{ started bool }

func (d *idText) Push(id int32) string {
	if !d.started {
		d.started = true
		return strconv.Itoa(int(id))
	}
	return " " + strconv.Itoa(int(id))
}

func (d *idText) Flush() string { return "" }

func (b *Backend) newDetokenizer(skipSpecial bool) Detokenizer {
	if b.Tokenizer == nil {
		return &idText{}
	}
	return b.Tokenizer.NewStream(skipSpecial)
}

// encode turns text into ids. param names the field for the refusal.
func (b *Backend) encode(text, param string) ([]int32, error) {
	if b.Tokenizer == nil {
		return nil, badParam(param, "this server has no tokenizer, so it takes token ids only (%s)", b.Model.TokenizerNote)
	}
	return b.Tokenizer.Encode(text, nil), nil
}

// decode turns ids into text in one go.
func (b *Backend) decode(ids []int32, skipSpecial bool) string {
	d := b.newDetokenizer(skipSpecial)
	var text []byte
	for _, id := range ids {
		text = append(text, d.Push(id)...)
	}
	return string(append(text, d.Flush()...))
}
