package cache

import (
	"slices"

	"larder/internal/kv"
)

// names remembers the keys of the prompt that was asked for last. A prompt is looked up, perhaps a few times, and then
// opened, and the next one often begins alike; hashing is most of what a lookup costs, comparing tokens is a twentieth
// of it.
type names struct {
	root   kv.Key
	salt   string
	rooted bool
	tokens []int32  // of the blocks that are named
	keys   []kv.Key // one a block
}

// begin keeps what the remembered prompt has in common with tokens, in blocks of n tokens.
func (m *names) begin(fingerprint, salt string, tokens []int32, n int) {
	if !m.rooted || salt != m.salt {
		*m = names{root: kv.RootKey(fingerprint, salt), salt: salt, rooted: true, tokens: m.tokens[:0], keys: m.keys[:0]}
	}
	same := 0
	for end := n; end <= len(m.tokens) && end <= len(tokens) && slices.Equal(m.tokens[end-n:end], tokens[end-n:end]); end += n {
		same++
	}
	m.tokens, m.keys = m.tokens[:same*n], m.keys[:same]
}

// key names block i of tokens. Blocks are asked for in order.
func (m *names) key(i int, tokens []int32, n int) kv.Key {
	if i < len(m.keys) {
		return m.keys[i]
	}
	k := m.root
	if i > 0 {
		k = m.keys[i-1]
	}
	k = k.Child(tokens[i*n : (i+1)*n])
	m.keys = append(m.keys, k)
	m.tokens = append(m.tokens, tokens[i*n:(i+1)*n]...)
	return k
}
