package kv

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"testing"

	"larder/internal/arch"
)

// ids reads token ids from bytes, four each.
func ids(b []byte) (out []int32) {
	for len(b) >= 4 {
		out = append(out, int32(binary.LittleEndian.Uint32(b)))
		b = b[4:]
	}
	return out
}

// FuzzKey holds keys to their definition, and two contents to two keys: other tokens, another cut between prefix and
// block, another salt or another fingerprint.
func FuzzKey(f *testing.F) {
	f.Add("model", "", []byte("0123456789abcdef"), uint8(1))
	f.Add("m", "salt", make([]byte, 4*300), uint8(255)) // longer than the blocks that fit the buffer on the stack
	f.Add("", "", []byte{}, uint8(0))
	f.Fuzz(func(t *testing.T, fingerprint, salt string, raw []byte, cut uint8) {
		root, tokens := RootKey(fingerprint, salt), ids(raw)
		before := slices.Clone(tokens)
		key := root.Child(tokens)
		if sum := sha256.Sum256(append(root[:], raw[:4*len(tokens)]...)); key != Key(sum[:16]) {
			t.Fatalf("key %x is not the hash of parent and tokens", key)
		}
		if key != root.Child(tokens) || !slices.Equal(tokens, before) {
			t.Fatal("asked again, the key is another, or the tokens are")
		}
		if RootKey(fingerprint, salt+"x") == RootKey(fingerprint+salt+"x", "") {
			t.Error("where the fingerprint ends and the salt begins makes no difference")
		}
		others := map[string]Key{
			"the parent":          root,
			"one token more":      root.Child(append(before, 0)),
			"a salt more":         RootKey(fingerprint, salt+"x").Child(tokens),
			"another fingerprint": RootKey(fingerprint+"x", salt).Child(tokens),
		}
		if n := len(tokens); n > 0 {
			at := int(cut) % n
			before[at] ^= 1
			others["another token"] = root.Child(before[:n])
			others["two blocks"] = root.Child(tokens[:at]).Child(tokens[at:])
		}
		for name, other := range others {
			if other == key {
				t.Errorf("%s: the same key", name)
			}
		}
	})
}

// TestKeyIsPinned: keys on a disk or in another process must mean the same.
func TestKeyIsPinned(t *testing.T) {
	key := RootKey("model", "salt").Child([]int32{1, 2, 3, 4}).Child([]int32{5, 6, 7, -8})
	if got, want := hex.EncodeToString(key[:]), "c130540971a1868d4f9f610d018c683e"; got != want {
		t.Errorf("key is %s, was %s", got, want)
	}
}

func TestLayoutOfTheDocumentsModel(t *testing.T) {
	l := Layout{Layers: 48, KVHeads: 4, HeadDim: 128, BlockTokens: 64, DType: arch.BF16}
	if err := l.Validate(); err != nil {
		t.Fatal(err)
	}
	if l.LayerBytes() != 128<<10 || l.BlockBytes() != 6<<20 || l.TokenBytes() != 96<<10 || l.Blocks(9216) != 144 || l.Blocks(9217) != 145 || l.Blocks(0) != 0 {
		t.Errorf("layer %d, block %d, token %d bytes; %d blocks", l.LayerBytes(), l.BlockBytes(), l.TokenBytes(), l.Blocks(9216))
	}
}

// TestHeadOffset walks a pool in the layout's order: every head's place begins where the one before ends.
func TestHeadOffset(t *testing.T) {
	l := Layout{Layers: 3, KVHeads: 2, HeadDim: 5, BlockTokens: 4, DType: arch.F32}
	at := int64(0)
	for b := range BlockID(3) {
		for layer := range l.Layers {
			for _, value := range []bool{false, true} {
				for head := range l.KVHeads {
					if got := l.HeadOffset(b, layer, value, head); got != at {
						t.Fatalf("block %d layer %d value %v head %d is at %d, should be at %d", b, layer, value, head, got, at)
					}
					at += l.HeadBytes()
				}
			}
		}
	}
	if at != 3*l.BlockBytes() {
		t.Errorf("three blocks end at %d, are %d bytes", at, 3*l.BlockBytes())
	}
}

func TestLayoutValidate(t *testing.T) {
	good := Layout{Layers: 1, KVHeads: 1, HeadDim: 1, BlockTokens: 1, DType: arch.BF16}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Layout){
		"no layer":       func(l *Layout) { l.Layers = 0 },
		"no head":        func(l *Layout) { l.KVHeads = 0 },
		"no dim":         func(l *Layout) { l.HeadDim = -1 },
		"no dtype":       func(l *Layout) { l.DType = 0 },
		"no tokens":      func(l *Layout) { l.BlockTokens = 0 },
		"not of two":     func(l *Layout) { l.BlockTokens = 48 },
		"a negative one": func(l *Layout) { l.BlockTokens = -64 },
	} {
		bad := good
		change(&bad)
		if bad.Validate() == nil {
			t.Errorf("%s: valid", name)
		}
	}
}
