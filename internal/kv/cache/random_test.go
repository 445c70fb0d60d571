package cache

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"larder/internal/kv"
)

// machine runs random sequences in a world, and keeps what a cache without limits would know.
type machine struct {
	*world
	cfg   Config
	known map[string]bool // every full block that was committed, as its text
	fails bool
}

func newMachine(t *rapid.T, cfg Config) *machine {
	cfg.Eviction = rapid.SampledFrom([]string{"", "lru", "lfu", "slru"}).Draw(t, "eviction")
	w, err := newWorld(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &machine{world: w, cfg: cfg, known: map[string]bool{}, fails: rapid.Bool().Draw(t, "fails")}
}

// prompt shares prefixes with others: all its tokens are 0 but for the first of each block.
func prompt(t *rapid.T) (string, []int32) {
	salt := rapid.SampledFrom([]string{"", "", "", "other"}).Draw(t, "salt")
	p := make([]int32, rapid.IntRange(0, 10*bt).Draw(t, "length"))
	for i := 0; i < len(p); i += bt {
		p[i] = int32(rapid.IntRange(0, 1).Draw(t, "token"))
	}
	return salt, p
}

// limit is the longest hit of a cache without limits.
func (m *machine) limit(salt string, tokens []int32) int {
	n := 0
	for n+bt < len(tokens) && m.known[text(salt, tokens[:n+bt])] {
		n += bt
	}
	return n
}

// lost says whether a cache without limits may know more.
func (m *machine) lost() bool {
	st := m.c.Stats()
	return st[kv.Device].DroppedBlocks+st[kv.Host].DroppedBlocks > 0
}

func (m *machine) open(t *rapid.T) {
	salt, tokens := prompt(t)
	maxLoad := rapid.SampledFrom([]int{1 << 20, 1 << 20, 0, bt - 1, 2 * bt}).Draw(t, "maxLoad")
	seen := m.c.Lookup(salt, tokens)
	if total, limit := seen.Device+seen.Host, m.limit(salt, tokens); total > limit || total < limit && !m.lost() {
		t.Fatalf("prompt of %d: hit %+v, without limits it would be %d", len(tokens), seen, limit)
	}
	room := m.c.Room()
	l, err := m.c.Open(salt, tokens, maxLoad)
	if err != nil {
		if !errors.Is(err, ErrNoRoom) || min(seen.Host, maxLoad)/bt <= room-seen.Device/bt {
			t.Fatalf("%v, but %+v was hit and there was room for %d", err, seen, room)
		}
		return
	}
	h := l.Hit()
	if h.Device > seen.Device || h.Host > min(seen.Host, maxLoad) || maxLoad >= seen.Host && h != seen {
		t.Fatalf("prompt of %d: hit %+v, looked up %+v, at most %d to load", len(tokens), h, seen, maxLoad)
	}
	if l.Ready() != (l.loads == 0) || l.Valid() != h.Device+h.Host {
		t.Fatalf("hit %+v, valid %d, ready %v", h, l.Valid(), l.Ready())
	}
	m.live = append(m.live, &runner{l: l, salt: salt, tokens: tokens})
}

// compute takes a ready sequence some tokens further. Room says exactly what Extend can get.
func (m *machine) compute(t *rapid.T) {
	r := m.pick(t)
	if !r.l.Ready() {
		t.Skip("it waits")
	}
	valid := r.l.Valid()
	if valid == len(r.tokens) {
		r.tokens = append(r.tokens, int32(rapid.IntRange(0, 1).Draw(t, "reply")))
	}
	n := rapid.IntRange(valid+1, len(r.tokens)).Draw(t, "upto")
	room, need, before := m.c.Room(), (n+bt-1)/bt-len(r.l.Blocks()), m.c.Stats()
	err := r.l.Extend(n)
	if (err == nil) != (need <= room) || err != nil && !errors.Is(err, ErrNoRoom) {
		t.Fatalf("there was room for %d blocks, asked were %d: %v", room, need, err)
	}
	if err != nil {
		if after := m.c.Stats(); m.cfg.Write != WriteBack && after[kv.Device].EvictedBlocks != before[kv.Device].EvictedBlocks {
			t.Fatal("no room, but blocks were evicted")
		}
		m.retire(r) // or it might wait for what it holds itself
		m.mustHope(t, r, n)
		return
	}
	if got := m.c.Stats()[kv.Device].EvictedBlocks - before[kv.Device].EvictedBlocks; int(got) > max(0, need-before[kv.Device].Free) {
		t.Fatalf("%d blocks were evicted for %d, of which %d were free", got, need, before[kv.Device].Free)
	}
	m.write(r, n)
	if rapid.Bool().Draw(t, "retire") {
		m.retire(r)
	}
	if r.l.named < n/bt && !m.cfg.NoPrefix && len(m.c.loads) == 0 {
		t.Fatalf("only %d of %d blocks are published, and no load stands in the way", r.l.named, n/bt)
	}
	m.learn(r)
}

// learn notes what r has published.
func (m *machine) learn(r *runner) {
	for end := bt; end <= r.l.named*bt; end += bt {
		m.known[text(r.salt, r.tokens[:end])] = true
	}
}

// mustHope demands that a sequence which runs alone and finds no room finds it after a while: each time it asks in vain
// a move is under way, and when those are done it gets nearer to what it wants, whether they fail or not.
func (m *machine) mustHope(t *rapid.T, r *runner, n int) {
	if len(m.live) > 1 || (n+bt-1)/bt > m.cfg.DeviceBlocks {
		return
	}
	for range m.cfg.DeviceBlocks {
		m.verify(t)
		if len(m.flying) == 0 {
			t.Fatalf("alone with %d blocks, no move under way, and yet no room for %d tokens", m.cfg.DeviceBlocks, n)
		}
		for len(m.flying) > 0 {
			m.move(t)
		}
		if r.l.Extend(n) == nil {
			return
		}
	}
	t.Fatalf("alone with %d blocks, and yet no room for %d tokens after all moves", m.cfg.DeviceBlocks, n)
}

// whole runs a prompt from its beginning to its end and gives it back, if it finds room.
func (m *machine) whole(t *rapid.T) {
	salt, tokens := prompt(t)
	l, err := m.c.Open(salt, tokens, 0)
	if err != nil {
		return
	}
	defer l.Close()
	if l.Extend(len(tokens)) == nil {
		r := &runner{l: l, salt: salt, tokens: tokens}
		m.write(r, len(tokens))
		m.learn(r)
	}
}

// alone ends everybody else, and runs a prompt: it must find room.
func (m *machine) alone(t *rapid.T) {
	for _, r := range m.live {
		r.l.Close()
	}
	m.live = nil
	salt, tokens := prompt(t)
	l, err := m.c.Open(salt, tokens, 0)
	if err != nil {
		t.Fatalf("alone, without loads: %v", err)
	}
	r := &runner{l: l, salt: salt, tokens: tokens}
	m.live = append(m.live, r)
	if l.Extend(len(tokens)) != nil {
		m.mustHope(t, r, len(tokens))
	}
}

func (m *machine) pick(t *rapid.T) *runner {
	if len(m.live) == 0 {
		t.Skip("nobody runs")
	}
	return rapid.SampledFrom(m.live).Draw(t, "who")
}

func (m *machine) close(t *rapid.T) {
	r := m.pick(t)
	r.l.Close()
	r.l.Close()
	m.live = slices.DeleteFunc(m.live, func(x *runner) bool { return x == r })
}

func (m *machine) move(t *rapid.T) {
	if len(m.flying) == 0 {
		t.Skip("nothing flies")
	}
	var err error
	if m.fails && rapid.IntRange(0, 3).Draw(t, "fate") == 3 {
		err = errInjected
	}
	m.land(rapid.IntRange(0, len(m.flying)-1).Draw(t, "which"), err)
}

func (m *machine) place(t *rapid.T) {
	salt, tokens := prompt(t)
	to := Placement(rapid.IntRange(0, 2).Draw(t, "to"))
	err := m.c.Place(salt, tokens, to)
	for _, expected := range []error{ErrNoRoom, ErrNotCached, ErrInUse, ErrMoving} {
		if errors.Is(err, expected) {
			if expected == ErrMoving && m.c.Pending() == 0 {
				t.Fatal("nothing moves")
			}
			return
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	device, host, both, missing := m.c.Residency(salt, tokens)
	want := [...]int{Nowhere: missing, OnlyDevice: device, OnlyHost: host}[to]
	if want != len(tokens)/bt || device+host+both+missing != len(tokens)/bt {
		t.Fatalf("placed %d blocks: %d on the device, %d on the host, %d in both, %d in none", len(tokens)/bt, device, host, both, missing)
	}
}

func (m *machine) flush(t *rapid.T) {
	err := m.c.Flush()
	if busy := len(m.live) > 0 || m.c.Pending() > 0; busy != errors.Is(err, ErrInUse) || !busy && err != nil {
		t.Fatalf("%d leases, %d moves, flush says %v", len(m.live), m.c.Pending(), err)
	}
	if err == nil {
		m.mustBeEmpty(t)
	}
}

func (m *machine) mustBeEmpty(t *rapid.T) {
	for tier, s := range m.c.Stats() {
		if s.Free != s.Total {
			t.Fatalf("flushed, but the %v tier has %+v", kv.Tier(tier), s)
		}
	}
}

func (m *machine) verify(t *rapid.T) {
	m.drain()
	if err := m.check(); err != nil {
		t.Fatal(err)
	}
}

// end closes everything, lets every move end, and demands that nothing has leaked.
func (m *machine) end(t *rapid.T) {
	for len(m.live) > 0 {
		m.live[0].l.Close()
		m.live = m.live[1:]
		m.verify(t)
	}
	for len(m.flying) > 0 {
		m.land(0, nil)
		m.verify(t)
	}
	if err := m.c.Flush(); err != nil {
		t.Fatal(err)
	}
	m.verify(t)
	m.mustBeEmpty(t)
}

// run takes the machine through random steps to its end.
func (m *machine) run(t *rapid.T) {
	t.Repeat(map[string]func(*rapid.T){
		"open": m.open, "open too": m.open, "compute": m.compute, "compute on": m.compute, "compute more": m.compute, "close": m.close,
		"whole": m.whole, "alone": m.alone, "move": m.move, "move on": m.move, "place": m.place, "flush": m.flush, "": m.verify,
	})
	m.end(t)
}

// TestRandom runs random sequences on pools of all sizes, down to one block. What a hit names must be there, whatever
// was evicted, moved, failed or closed meanwhile; every invariant holds after every step; and as long as nothing had to
// be dropped, a hit is what a cache without limits would give.
func TestRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		newMachine(t, Config{
			DeviceBlocks: rapid.SampledFrom([]int{1, 3, 8, 20, 400}).Draw(t, "device"),
			HostBlocks:   rapid.SampledFrom([]int{0, 1, 4, 12, 400}).Draw(t, "host"),
			Write:        WritePolicy(rapid.IntRange(0, 2).Draw(t, "write")),
			NoPrefix:     rapid.IntRange(0, 9).Draw(t, "noPrefix") == 9,
			MaxStoring:   rapid.SampledFrom([]int{0, 0, 1, 3}).Draw(t, "maxStoring"),
		}).run(t)
	})
}

// TestRandomWriteBack does the same where it is hardest to make room.
func TestRandomWriteBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		newMachine(t, Config{
			DeviceBlocks: rapid.SampledFrom([]int{6, 10, 20}).Draw(t, "device"),
			HostBlocks:   rapid.SampledFrom([]int{1, 2, 4, 12}).Draw(t, "host"),
			Write:        WriteBack,
		}).run(t)
	})
}
