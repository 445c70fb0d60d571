package cache

import (
	"errors"
	"testing"

	"larder/internal/kv"
)

// TestStoresAreBounded: of a long prompt just so many blocks wait to be stored at once, the first ones; the rest is
// stored when it is used again, and counted until then.
func TestStoresAreBounded(t *testing.T) {
	w, err := newWorld(Config{DeviceBlocks: 16, HostBlocks: 16, MaxStoring: 3})
	if err != nil {
		t.Fatal(err)
	}
	tokens := make([]int32, 8*bt+1)
	for i := range tokens {
		tokens[i] = int32(i)
	}
	run := func() []kv.Move {
		t.Helper()
		l, err := w.c.Open("", tokens, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Extend(len(tokens)); err != nil {
			t.Fatal(err)
		}
		w.write(&runner{l: l, tokens: tokens}, len(tokens))
		moves := w.drain()
		l.Close()
		if err := w.check(); err != nil {
			t.Fatal(err)
		}
		return moves
	}
	skipped := []uint64{5, 10, 12, 12, 12} // after each turn
	for turn, want := range []int{3, 0, 3, 2, 0} {
		if got := run(); len(got) != want || w.c.Stats()[kv.Host].SkippedStores != skipped[turn] {
			t.Fatalf("turn %d: %d stores were ordered, want %d; %d were skipped", turn, len(got), want, w.c.Stats()[kv.Host].SkippedStores)
		}
		for turn > 0 && len(w.flying) > 0 {
			w.land(0, nil)
		}
	}
	if got := w.c.Lookup("", tokens); got.Device != 8*bt {
		t.Errorf("%+v", got)
	}
	if n := w.c.Stats()[kv.Host].StoredBlocks; n != 8 {
		t.Errorf("%d blocks are stored", n)
	}
}

// TestLateLoads: a load that was dropped at its deadline is a failed one, and counted by itself.
func TestLateLoads(t *testing.T) {
	w, err := newWorld(Config{DeviceBlocks: 4, HostBlocks: 4, Write: WriteThrough})
	if err != nil {
		t.Fatal(err)
	}
	tokens := make([]int32, 2*bt+1)
	l, err := w.c.Open("", tokens, 0)
	if err := errors.Join(err, l.Extend(len(tokens))); err != nil {
		t.Fatal(err)
	}
	w.write(&runner{l: l, tokens: tokens}, len(tokens))
	l.Close()
	for w.drain(); len(w.flying) > 0; {
		w.land(0, nil)
	}
	other := []int32{9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9}
	l, err = w.c.Open("", other, 0)
	if err := errors.Join(err, l.Extend(len(other))); err != nil { // all four blocks: what was there is evicted
		t.Fatal(err)
	}
	l.Close()
	l, err = w.c.Open("", tokens, 1<<20)
	if err != nil || l.Hit().Host != 2*bt || len(w.drain()) != 2 {
		t.Fatalf("%v, %+v", err, l.Hit())
	}
	w.land(1, kv.ErrLate)
	w.land(0, errInjected)
	if s := w.c.Stats()[kv.Host]; s.FailedLoads != 2 || s.LateLoads != 1 || !l.Ready() || l.Valid() != 0 {
		t.Fatalf("%+v, %d tokens are valid", s, l.Valid())
	}
	l.Close()
	if err := w.check(); err != nil {
		t.Fatal(err)
	}
}
