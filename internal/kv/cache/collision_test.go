package cache

import (
	"testing"

	"larder/internal/kv"
	"larder/internal/kv/prefix"
)

// TestCollision: a content whose key another content has is never a hit and never becomes known; it is computed as if
// nothing were cached, and what it used is given back.
func TestCollision(t *testing.T) {
	w, err := newWorld(Config{Fingerprint: "test", DeviceBlocks: 6, HostBlocks: 6})
	if err != nil {
		t.Fatal(err)
	}
	prompt, other := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9}, []int32{91, 92, 93, 94}
	ids, err := w.c.take(kv.Device, 1)
	if err != nil {
		t.Fatal(err)
	}
	thief := w.c.index.Add(kv.RootKey("test", "").Child(prompt[:bt]), nil, other)
	w.tiers[kv.Device][ids[0]] = text("", other)
	w.c.set(thief, kv.Device, prefix.Place{Block: ids[0], State: prefix.Here})

	for range 2 {
		if h := w.c.Lookup("", prompt); h != (Hit{}) {
			t.Fatalf("hit %+v of another content", h)
		}
		l, err := w.c.Open("", prompt, len(prompt))
		if err != nil {
			t.Fatal(err)
		}
		w.live = []*runner{{l: l, tokens: prompt}}
		if err := l.Extend(len(prompt)); err != nil {
			t.Fatal(err)
		}
		w.write(w.live[0], len(prompt))
		known := 0
		w.c.index.Each(func(*prefix.Entry) { known++ })
		if err := w.check(); err != nil || w.c.Pending() != 0 || known != 1 {
			t.Fatalf("%v; %d moves, %d known", err, w.c.Pending(), known)
		}
		l.Close()
		w.live = nil
		if s := w.c.Stats()[kv.Device]; s.Free != 5 || s.Cached != 1 || s.HitTokens != 0 {
			t.Fatalf("after Close: %+v", s)
		}
	}
	if thief.At[kv.Device].Block != ids[0] || w.tiers[kv.Device][ids[0]] != text("", other) {
		t.Error("the other content was touched")
	}
}
