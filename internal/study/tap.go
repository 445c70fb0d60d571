package study

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"sync"

	"larder/internal/infer"
)

// Tap is a Generator that passes everything on and, while it listens, keeps what the engine says of each request:
// times, cached and computed tokens, output. The server is given the tap instead of the engine, and so the study
// learns what HTTP does not carry without the measured path changing. Safe for concurrent use.
type Tap struct {
	infer.Generator

	mu   sync.Mutex
	seen map[[32]byte]Seen // by prompt; nil: not listening. Guarded by mu.
}

// Seen is one request as the engine saw it.
type Seen struct {
	Usage  infer.Usage
	Output []int32
}

// NewTap taps g.
func NewTap(g infer.Generator) *Tap { return &Tap{Generator: g} }

// Generate passes r on.
func (t *Tap) Generate(ctx context.Context, r *infer.Request, emit func(infer.Event) error) (infer.Usage, error) {
	t.mu.Lock()
	on := t.seen != nil
	t.mu.Unlock()
	if !on {
		return t.Generator.Generate(ctx, r, emit)
	}
	key := promptKey(r.Tokens)
	output := make([]int32, 0, r.MaxNew)
	return t.Generator.Generate(ctx, r, func(e infer.Event) error {
		output = append(output, e.Tokens...)
		if e.Finish != infer.NotFinished {
			t.keep(key, Seen{e.Usage, output}) // before the client can know that it is over
		}
		return emit(e)
	})
}

func (t *Tap) keep(key [32]byte, s Seen) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.seen != nil {
		t.seen[key] = s
	}
}

// listen starts over.
func (t *Tap) listen() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen = map[[32]byte]Seen{}
}

// heard stops listening and returns what was seen, by prompt.
func (t *Tap) heard() map[[32]byte]Seen {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	seen := t.seen
	t.seen = nil
	return seen
}

// promptKey names a prompt by its end, where the prompts of one burst all differ: the tap is on the measured path.
func promptKey(ids []int32) [32]byte {
	ids = ids[max(0, len(ids)-64):]
	b := make([]byte, 0, 4*64)
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, uint32(id))
	}
	return sha256.Sum256(b)
}
