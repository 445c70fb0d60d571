package kv

import (
	"crypto/sha256"
	"encoding/binary"
)

// Key names the content of a block: the first 128 bits of a SHA-256 chained over the parent's key and the block's
// token ids, so a key stands for the whole prefix that ends with the block. A key is not identity: a hit compares
// the tokens as well (invariant 5).
type Key [16]byte

// RootKey is the parent of every first block. The fingerprint covers model, layout and dtype; the salt parts callers
// that must not share (empty: all share).
func RootKey(fingerprint, salt string) Key {
	h := sha256.New()
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(fingerprint)))
	h.Write(n[:])
	h.Write([]byte(fingerprint))
	h.Write([]byte(salt))
	var sum [sha256.Size]byte
	return Key(h.Sum(sum[:0])[:16])
}

// Child is the key of a block of tokens whose prefix is k.
func (k Key) Child(tokens []int32) Key {
	buf := make([]byte, 0, 16+4*256)
	buf = append(buf, k[:]...)
	for _, t := range tokens {
		buf = binary.LittleEndian.AppendUint32(buf, uint32(t))
	}
	sum := sha256.Sum256(buf)
	return Key(sum[:16])
}
