package xfer

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/device/cpu"
	"larder/internal/kv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var layout = kv.Layout{Layers: 2, KVHeads: 1, HeadDim: 4, BlockTokens: 2, DType: arch.BF16}

// rig is a mover over pools in which every block has content of its own.
type rig struct {
	*Mover
	mem     *memory
	pools   [kv.NumTiers]buffer
	records []CopyRecord
	nextID  kv.MoveID
}

type fataler interface{ Fatal(...any) }

// newRig has batches of maxBlocks blocks and a window of many; change may say otherwise.
func newRig(t fataler, blocks, maxBlocks int, change ...func(*Config)) *rig {
	r := &rig{mem: newMemory()}
	size := layout.BlockBytes()
	for tier := range r.pools {
		r.pools[tier] = make(buffer, int64(blocks)*size)
		for i := range r.pools[tier] {
			r.pools[tier][i] = byte(int64(i)/size*2 + int64(tier))
		}
	}
	cfg := Config{
		Layout: layout, Memory: r.mem, DevicePool: r.pools[kv.Device], HostPool: r.pools[kv.Host],
		BatchBytes: int64(maxBlocks) * size, WindowBytes: 1 << 30, Trace: func(c CopyRecord) { r.records = append(r.records, c) },
	}
	for _, f := range change {
		f(&cfg)
	}
	var err error
	if r.Mover, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) block(t kv.Tier, b kv.BlockID) []byte {
	size := int(layout.BlockBytes())
	return r.pools[t][int(b)*size:][:size]
}

func (r *rig) move(from kv.Tier, src, dst kv.BlockID) kv.Move {
	r.nextID++
	return kv.Move{ID: r.nextID, From: from, To: 1 - from, Src: src, Dst: dst}
}

// loads is n moves of which no two make one piece.
func (r *rig) loads(n int) (moves []kv.Move) {
	for i := range kv.BlockID(n) {
		moves = append(moves, r.move(kv.Host, i, kv.BlockID(n)-1-i))
	}
	return moves
}

// poll collects what Poll reports: the error of each move, by its number.
func (r *rig) poll() map[kv.MoveID]error {
	out := map[kv.MoveID]error{}
	n := r.Poll(func(m kv.Move, err error) { out[m.ID] = err })
	if n != len(out) {
		panic(fmt.Sprintf("Poll says %d and reports %d", n, len(out)))
	}
	return out
}

// reports waits, as the engine does, until n moves are reported.
func (r *rig) reports(n int) map[kv.MoveID]error {
	out := map[kv.MoveID]error{}
	for {
		for id, err := range r.poll() {
			out[id] = err
		}
		if len(out) >= n {
			return out
		}
		<-r.Notify()
	}
}

// TestMove: Submit returns before anything has moved; each direction moves by itself; what is reported is there.
func TestMove(t *testing.T) {
	r := newRig(t, 8, 100)
	want := bytes.Clone(r.block(kv.Host, 5))
	stored := bytes.Clone(r.block(kv.Device, 7))
	r.mem.hold("kv load")
	r.mem.hold("kv store")
	r.SubmitTagged(7, []kv.Move{r.move(kv.Host, 4, 0), r.move(kv.Host, 5, 1), r.move(kv.Device, 7, 0)})
	if r.Pending() != 3 || len(r.poll()) != 0 {
		t.Fatalf("%d pending", r.Pending())
	}
	r.mem.release("kv load")
	if got := r.reports(2); len(got) != 2 || got[1] != nil || got[2] != nil || r.Pending() != 1 {
		t.Fatalf("reported %v, %d pending", got, r.Pending())
	}
	if !bytes.Equal(r.block(kv.Device, 1), want) || bytes.Equal(r.block(kv.Host, 0), stored) {
		t.Fatal("the load is not there, or the store is")
	}
	r.mem.release("kv store")
	if got := r.reports(1); len(got) != 1 || got[3] != nil || !bytes.Equal(r.block(kv.Host, 0), stored) {
		t.Fatalf("reported %v", got)
	}
	size := layout.BlockBytes()
	load := CopyRecord{Tag: 7, From: kv.Host, To: kv.Device, Bytes: 2 * size, Blocks: 2, Pieces: 1, Method: Runs, Start: 0, End: time.Duration(2 * size)}
	if len(r.records) != 2 || r.records[0] != load || r.records[1].Start != load.End || r.records[1].End != load.End+time.Duration(size) {
		t.Fatalf("traced %+v", r.records)
	}
	if st := r.Stats(kv.Device); st.Batches != 1 || st.Pieces != 1 || st.Moves != 2 || st.Bytes != uint64(2*size) || st.Failed != 0 || st.Busy != load.End {
		t.Fatalf("loads: %+v", st)
	}
	if err := errors.Join(r.Close(), r.Close()); err != nil || r.mem.open() != 0 {
		t.Fatalf("%v; %d streams are open", err, r.mem.open())
	}
}

// TestFailure: a batch that stops short fails its moves and those behind it on the stream, not those of the other
// direction, and not those that come later.
func TestFailure(t *testing.T) {
	r := newRig(t, 16, 2)
	r.mem.fail = func(n int) error {
		if n == 1 {
			return errShort
		}
		return nil
	}
	r.mem.hold("kv load")
	r.Submit([]kv.Move{r.move(kv.Host, 0, 0), r.move(kv.Host, 1, 1), r.move(kv.Host, 2, 2), r.move(kv.Host, 3, 3), r.move(kv.Host, 9, 9)})
	r.mem.await(func() bool { return r.mem.queued == 3 })
	r.mem.release("kv load")
	got := r.reports(5)
	if len(got) != 5 || got[1] != nil || got[2] != nil || !errors.Is(got[3], errShort) || !errors.Is(got[4], errShort) || !errors.Is(got[5], errShort) {
		t.Fatalf("reported %v", got)
	}
	if st := r.Stats(kv.Device); st.Moves != 2 || st.Failed != 3 || st.Batches != 3 || int64(st.Bytes) != 2*layout.BlockBytes() {
		t.Fatalf("loads: %+v", st)
	}
	r.Submit([]kv.Move{r.move(kv.Device, 8, 8)})
	if got := r.reports(1); got[6] != nil {
		t.Fatalf("the other direction: %v", got)
	}
	r.mem.mu.Lock()
	r.mem.refuse = device.ErrOutOfMemory // no new stream: nothing moves, and that is said
	r.mem.mu.Unlock()
	r.Submit([]kv.Move{r.move(kv.Host, 4, 4)})
	if got := r.reports(1); !errors.Is(got[7], device.ErrOutOfMemory) {
		t.Fatalf("reported %v", got)
	}
	if c := r.records[len(r.records)-1]; c.Err == nil || c.Bytes != 0 || c.Start != 0 || c.End != 0 || c.Blocks != 1 {
		t.Fatalf("traced %+v", c)
	}
	r.mem.mu.Lock()
	r.mem.refuse = nil
	r.mem.mu.Unlock()
	r.Submit([]kv.Move{r.move(kv.Host, 4, 4), r.move(kv.Host, 12, 12)})
	if got := r.reports(2); len(got) != 2 || got[8] != nil || got[9] != nil || !bytes.Equal(r.block(kv.Device, 4), r.block(kv.Host, 4)) {
		t.Fatalf("after the failure: %v", got)
	}
	if r.mem.open() != 2 || r.Close() != nil || r.mem.open() != 0 {
		t.Fatalf("%d streams are open", r.mem.open())
	}
}

// TestFailureSparesWhatWaits: batches that were not on the stream when it broke go over the next one, of the same
// Submit too.
func TestFailureSparesWhatWaits(t *testing.T) {
	r := newRig(t, 8, 1, func(c *Config) { c.WindowBytes = 2 * c.BatchBytes })
	r.mem.fail = func(n int) error {
		if n == 0 {
			return errShort
		}
		return nil
	}
	r.mem.hold("kv load")
	r.Submit(r.loads(6))
	r.mem.await(func() bool { return r.mem.queued == 2 })
	r.mem.release("kv load")
	got := r.reports(6)
	if !errors.Is(got[1], errShort) || !errors.Is(got[2], errShort) || got[3] != nil || got[4] != nil || got[5] != nil || got[6] != nil {
		t.Fatalf("reported %v", got)
	}
	if len(r.mem.streams) != 3 || r.mem.open() != 2 {
		t.Fatalf("%d streams were opened, one broke; %d are open", len(r.mem.streams), r.mem.open())
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestAgainstModel moves blocks at random and compares every byte of both pools, and every count, with plain copies.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const blocks = 12
		r := newRig(t, blocks, rapid.IntRange(1, 4).Draw(t, "max"), func(c *Config) {
			c.Method = []Method{Auto, Runs, Rows, Batch}[rapid.IntRange(0, 3).Draw(t, "method")]
			c.WindowBytes = rapid.Int64Range(1, 4).Draw(t, "window") * layout.BlockBytes()
			c.StoreShare = rapid.Float64Range(0, 1).Draw(t, "share")
		})
		defer r.Close()
		var model [kv.NumTiers]buffer
		var want [kv.NumTiers]Stats
		for range rapid.IntRange(1, 6).Draw(t, "rounds") {
			for tier := range model {
				model[tier] = bytes.Clone(r.pools[tier])
			}
			perm := rapid.Permutation([]kv.BlockID{0, 1, 2, 3, 4, 5})
			src, dst := perm.Draw(t, "src"), perm.Draw(t, "dst")
			var moves []kv.Move
			for i := range rapid.IntRange(0, 6).Draw(t, "n") { // loads go between the lower halves, stores between the upper
				m := r.move(kv.Host, src[i], dst[i])
				if rapid.Bool().Draw(t, "store") {
					m = r.move(kv.Device, src[i]+6, dst[i]+6)
				}
				moves = append(moves, m)
				size := int(layout.BlockBytes())
				copy(model[m.To][int(m.Dst)*size:][:size], model[m.From][int(m.Src)*size:])
				want[m.To].Moves++
				want[m.To].Bytes += uint64(size)
			}
			r.Submit(moves)
			for id, err := range r.reports(len(moves)) {
				if err != nil {
					t.Fatalf("move %d: %v", id, err)
				}
			}
			for tier := range model {
				if !bytes.Equal(model[tier], r.pools[tier]) {
					t.Fatalf("after %v the %v pool is wrong", moves, kv.Tier(tier))
				}
			}
		}
		var moved int64
		for tier := range want {
			got := r.Stats(kv.Tier(tier))
			if got.Moves != want[tier].Moves || got.Bytes != want[tier].Bytes || got.Busy < time.Duration(got.Bytes) { // a tick a byte
				t.Fatalf("into the %v: %+v, should be %+v", kv.Tier(tier), got, want[tier])
			}
			moved += int64(got.Bytes)
		}
		var traced int64
		for _, c := range r.records {
			traced += c.Bytes
		}
		if moved != r.mem.copied || traced != moved || r.Pending() != 0 { // invariant 8
			t.Fatalf("%d bytes moved, %d were reported, %d traced; %d pending", r.mem.copied, moved, traced, r.Pending())
		}
	})
}

// TestNotify: who sleeps until Notify rings and looks then never oversleeps, however many batches are queued.
func TestNotify(t *testing.T) {
	const n = 3000
	r := newRig(t, n, 1)
	r.Submit(r.loads(n))
	r.reports(n)
	for i := range kv.BlockID(200) {
		r.Submit([]kv.Move{r.move(kv.Host, i, i), r.move(kv.Device, n-1-i, n-1-i)})
		r.reports(2)
	}
	if st := r.Stats(kv.Device); st.Moves != n+200 || st.Batches != n+200 {
		t.Fatalf("%+v", st)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestLanding: a load on its stream has an event behind it, until it is reported; Notify tells of it.
func TestLanding(t *testing.T) {
	r := newRig(t, 8, 2, func(c *Config) { c.WindowBytes = c.BatchBytes })
	r.mem.hold("kv load")
	moves := r.loads(3)
	r.Submit(moves)
	r.mem.await(func() bool { return r.mem.queued == 1 })
	for {
		if _, ok := r.Landing(moves[1].ID); ok {
			break
		}
		<-r.Notify()
	}
	a, _ := r.Landing(moves[0].ID)
	b, _ := r.Landing(moves[1].ID)
	if _, ok := r.Landing(moves[2].ID); ok || a == nil || a != b || a.Done() {
		t.Fatal("the first two share an event that is to come, the third has none yet")
	}
	r.mem.release("kv load")
	r.reports(3)
	if _, ok := r.Landing(moves[0].ID); ok || !a.Done() || a.Wait() != nil {
		t.Fatal("a reported load is still landing")
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestLate: a load that waits behind a stream that stands still is dropped at its deadline, and nothing of it is ever
// written; one that was on the stream is not.
func TestLate(t *testing.T) {
	r := newRig(t, 8, 1, func(c *Config) { c.WindowBytes, c.LateAfter, c.LateTimes = c.BatchBytes, 1, 1 })
	r.Submit([]kv.Move{r.move(kv.Host, 0, 0)}) // no bandwidth is known: no deadline
	if got := r.reports(1); got[1] != nil {
		t.Fatalf("reported %v", got)
	}
	r.mem.hold("kv load")
	kept := bytes.Clone(r.block(kv.Device, 3))
	r.mem.mu.Lock()
	before := r.mem.queued
	r.mem.mu.Unlock()
	r.Submit([]kv.Move{r.move(kv.Host, 1, 1), r.move(kv.Host, 2, 3)})
	got := r.reports(1) // the first may have been on the stream in time, or not
	r.mem.release("kv load")
	for id, err := range r.reports(2 - len(got)) {
		got[id] = err
	}
	if !errors.Is(got[3], kv.ErrLate) || !bytes.Equal(kept, r.block(kv.Device, 3)) {
		t.Fatalf("reported %v", got)
	}
	if got[2] == nil && !bytes.Equal(r.block(kv.Device, 1), r.block(kv.Host, 1)) || got[2] != nil && (!errors.Is(got[2], kv.ErrLate) || r.mem.queued != before) {
		t.Fatalf("the first: %v", got[2])
	}
	late := uint64(0)
	for _, err := range got {
		if err != nil {
			late++
		}
	}
	if st := r.Stats(kv.Device); st.Late != late || st.Failed != late {
		t.Fatalf("%+v, %d were late", st, late)
	}
	if err := r.Close(); err != nil && !errors.Is(err, kv.ErrLate) {
		t.Fatal(err)
	}
}

// TestStoresGiveWay: while loads wait, stores get their share of the link and no more; once none waits, all of it.
func TestStoresGiveWay(t *testing.T) {
	r := newRig(t, 64, 1, func(c *Config) { c.StoreShare, c.WindowBytes = 0.25, 4*c.BatchBytes })
	r.mem.hold("kv load")
	r.Submit(r.loads(16))
	var stores []kv.Move
	for i := range kv.BlockID(6) {
		stores = append(stores, r.move(kv.Device, 32+i, 63-i))
	}
	r.Submit(stores)
	r.reports(1) // the store beside the first four loads
	r.mu.Lock()
	if s, size := r.serving, r.size; s.loads != 4*size || s.stores != size || len(r.ways[kv.Host].ready) != 5 {
		t.Errorf("%d bytes of stores beside %d of loads", s.stores, s.loads)
	}
	r.mu.Unlock()
	r.mem.release("kv load")
	r.reports(21)
	r.Submit(stores) // nothing waits: they need no loads
	r.reports(6)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestNoStreamRings: moves that cannot even start are reported, so whoever sleeps is told to look.
func TestNoStreamRings(t *testing.T) {
	r := newRig(t, 2, 1)
	r.mem.fail = func(int) error { return errShort }
	r.Submit([]kv.Move{r.move(kv.Host, 0, 0)})
	r.reports(1)
	r.mem.mu.Lock()
	r.mem.refuse = device.ErrLost
	r.mem.mu.Unlock()
	r.Submit([]kv.Move{r.move(kv.Host, 0, 0)})
	if got := r.reports(1); !errors.Is(got[2], device.ErrLost) || r.Close() != nil {
		t.Fatalf("reported %v", got)
	}
}

// TestCloseSaysWhatFailed: the error of a batch that Close waited for is Close's, and its moves' afterwards.
func TestCloseSaysWhatFailed(t *testing.T) {
	r := newRig(t, 2, 1)
	r.mem.fail = func(int) error { return errShort }
	r.Submit([]kv.Move{r.move(kv.Device, 0, 0)})
	if err := r.Close(); !errors.Is(err, errShort) {
		t.Fatalf("close says %v", err)
	}
	if got := r.poll(); !errors.Is(got[1], errShort) || r.Stats(kv.Host).Failed != 1 || r.mem.open() != 0 {
		t.Fatalf("reported %v", got)
	}
}

func TestNew(t *testing.T) {
	mem := newMemory()
	pool := make(buffer, 64)
	good := Config{Layout: layout, Memory: mem, DevicePool: pool, HostPool: pool}
	for name, change := range map[string]func(*Config){
		"kv layout":         func(c *Config) { c.Layout.Layers = 0 },
		"must be set":       func(c *Config) { c.Memory = nil },
		"both pools":        func(c *Config) { c.HostPool = nil },
		"pieces of -1":      func(c *Config) { c.MaxPieceBytes = -1 },
		"a window of -1":    func(c *Config) { c.WindowBytes = -1 },
		"stores at -1":      func(c *Config) { c.StoreShare = -1 },
		"late after 1s":     func(c *Config) { c.LateAfter = time.Second },
		"stream for kv loa": func(*Config) { mem.refuse = device.ErrOutOfMemory },
	} {
		bad := good
		change(&bad)
		if _, err := New(bad); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMisuse(t *testing.T) {
	for name, f := range map[string]func(*rig){
		"no way from host to host": func(r *rig) { r.Submit([]kv.Move{{From: kv.Host, To: kv.Host}}) },
		"no way from tier(7)":      func(r *rig) { r.Submit([]kv.Move{{From: 7, To: kv.Host}}) },
		"after Close":              func(r *rig) { r.Close(); r.Submit([]kv.Move{r.move(kv.Host, 1, 1)}) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 2, 1)
			defer func() {
				r.Close()
				if got, ok := recover().(string); !ok || !strings.Contains(got, name) {
					t.Fatalf("panicked with %q", got)
				}
			}()
			f(r)
		})
	}
}

// TestOnCPU: the same on a real device: a copy that leaves the pool fails, the next does not.
func TestOnCPU(t *testing.T) {
	dev, err := cpu.New(cpu.Config{})
	if err != nil {
		t.Fatal(err)
	}
	size := layout.BlockBytes()
	pool, err := dev.Alloc(4 * size)
	host, err2 := dev.AllocHost(4 * size)
	m, err3 := New(Config{Layout: layout, Memory: dev, DevicePool: pool, HostPool: host})
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	copy(host.(device.Mapped).Bytes()[size:], "what the host knows")
	for i, c := range []struct {
		src  kv.BlockID
		fail bool
	}{{9, true}, {1, false}} {
		m.Submit([]kv.Move{{ID: kv.MoveID(i), From: kv.Host, To: kv.Device, Src: c.src, Dst: 2}})
		for m.Pending() > 0 {
			<-m.Notify()
			m.Poll(func(_ kv.Move, err error) {
				if (err != nil) != c.fail {
					t.Errorf("block %d: %v", c.src, err)
				}
			})
		}
	}
	if got := pool.(device.Mapped).Bytes()[2*size:][:19]; string(got) != "what the host knows" {
		t.Errorf("the device has %q", got)
	}
	if err := errors.Join(m.Close(), pool.Free(), host.Free(), dev.Close()); err != nil {
		t.Fatal(err)
	}
}
