package xfer_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/device/cpu"
	"larder/internal/device/cuda"
	"larder/internal/kv"
	"larder/internal/kv/cache"
	"larder/internal/kv/xfer"
)

// The torture drives cache, mover and a real device together: sequences with shared prefixes come, compute, are given
// up in the middle of their loads and come again, on pools so small that eviction races loads and stores, while a share
// of the batches stops half way and fails. Every block that a sequence may read is read back from the device and must
// have, to the bit, what its tokens say.

const (
	tortureTokens = 4
	deviceBlocks  = 40
	hostBlocks    = 70
)

// breaking gives streams of which a share of the batches fails in the middle. The mover asks for one at a time.
type breaking struct {
	device.Memory
	rng    *rand.Rand
	share  float64
	broken int
}

func (m *breaking) NewStream(name string) (device.Stream, error) {
	s, err := m.Memory.NewStream(name)
	if err != nil || m.share == 0 {
		return s, err
	}
	m.broken++
	return &breakingStream{s, rand.New(rand.NewPCG(m.rng.Uint64(), uint64(m.broken))), m.share}, nil
}

type breakingStream struct {
	device.Stream
	rng   *rand.Rand
	share float64
}

// CopyMany breaks, now and then, after half of the pieces: what a device does that meets a bad address.
func (s *breakingStream) CopyMany(dst, src device.Buffer, pieces []device.Span, how device.CopyMethod) {
	if s.rng.Float64() >= s.share {
		s.Stream.CopyMany(dst, src, pieces, how)
		return
	}
	s.Stream.CopyMany(dst, src, pieces[:len(pieces)/2], how)
	s.Stream.Copy(dst, dst.Size(), src, 0, 1)
}

// Copy2D breaks before its last row.
func (s *breakingStream) Copy2D(dst device.Buffer, dstOff, dstPitch int64, src device.Buffer, srcOff, srcPitch, width int64, rows int) {
	if s.rng.Float64() >= s.share {
		s.Stream.Copy2D(dst, dstOff, dstPitch, src, srcOff, srcPitch, width, rows)
		return
	}
	if rows > 1 {
		s.Stream.Copy2D(dst, dstOff, dstPitch, src, srcOff, srcPitch, width, rows-1)
	}
	s.Stream.Copy(dst, dst.Size(), src, 0, 1)
}

// torture is the state of a run.
type torture struct {
	t       *testing.T
	rng     *rand.Rand
	layout  kv.Layout
	pool    device.Buffer
	stage   device.Mapped // one sequence's blocks, for writing and reading back
	stream  device.Stream
	mover   *xfer.Mover
	cache   *cache.Cache
	live    []*sequence
	sums    map[string]uint32 // of every content that was ever written
	checked int
	lost    int // moves that failed
}

type sequence struct {
	lease  *cache.Lease
	tokens []int32
}

// content is the KV of the block that ends with these tokens.
func content(block []byte, tokens []int32) {
	seed := uint64(len(tokens))
	for _, t := range tokens {
		seed = (seed ^ uint64(uint32(t))) * 0x9E3779B97F4A7C15
	}
	for i := 0; i+8 <= len(block); i += 8 {
		seed ^= seed >> 29
		seed *= 0xBF58476D1CE4E5B9
		binary.LittleEndian.PutUint64(block[i:], seed)
	}
}

func newTorture(t *testing.T, dev device.Device, seed uint64, share float64, late time.Duration, method xfer.Method) *torture {
	x := &torture{t: t, rng: rand.New(rand.NewPCG(seed, 1)), sums: map[string]uint32{}}
	x.layout = kv.Layout{Layers: 3, KVHeads: 2, HeadDim: 64, BlockTokens: tortureTokens, DType: arch.BF16}
	size := x.layout.BlockBytes()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	x.pool, err = dev.Alloc(deviceBlocks * size)
	must(err)
	host, err := dev.AllocHost(hostBlocks * size)
	must(err)
	stage, err := dev.AllocHost(deviceBlocks * size)
	must(err)
	x.stage = stage.(device.Mapped)
	x.stream, err = dev.NewStream("compute")
	must(err)
	x.mover, err = xfer.New(xfer.Config{
		Layout: x.layout, Memory: &breaking{Memory: dev, rng: rand.New(rand.NewPCG(seed, 2)), share: share}, DevicePool: x.pool, HostPool: host, Method: method,
		BatchBytes: 3 * size, WindowBytes: 6 * size, StoreShare: 0.5, LateAfter: late, LateTimes: 1,
	})
	must(err)
	x.cache, err = cache.New(cache.Config{
		Layout: x.layout, Fingerprint: "torture", DeviceBlocks: deviceBlocks, HostBlocks: hostBlocks,
		Write: cache.WritePolicy(x.rng.IntN(3)), MaxStoring: x.rng.IntN(3) * 4,
	})
	must(err)
	t.Cleanup(func() {
		_ = x.mover.Close() // says again what failed on purpose
		if err := errors.Join(x.stream.Close(), x.pool.Free(), host.Free(), stage.Free()); err != nil {
			t.Error(err)
		}
	})
	return x
}

// open starts a sequence on a prompt that shares its beginning with others.
func (x *torture) open() {
	tokens := make([]int32, tortureTokens*(1+x.rng.IntN(10))+1)
	for i := 0; i < len(tokens); i += tortureTokens {
		tokens[i] = int32(x.rng.IntN(3))
	}
	l, err := x.cache.Open("", tokens, 1<<20)
	if err == nil {
		x.live = append(x.live, &sequence{l, tokens})
	} else if !errors.Is(err, cache.ErrNoRoom) {
		x.t.Fatal(err)
	}
}

// turn does one thing, then hands on and takes in moves, as the engine does.
func (x *torture) turn() {
	switch n := x.rng.IntN(10); {
	case len(x.live) == 0 || n < 3 && len(x.live) < 6:
		x.open()
	case n < 5: // given up, perhaps in the middle of its loads
		i := x.rng.IntN(len(x.live))
		x.live[i].lease.Close()
		x.live = append(x.live[:i], x.live[i+1:]...)
	default:
		if s := x.live[x.rng.IntN(len(x.live))]; s.lease.Ready() {
			x.compute(s)
		}
	}
	x.move()
}

func (x *torture) move() {
	x.mover.Submit(x.cache.Moves())
	x.mover.Poll(func(m kv.Move, err error) {
		if err != nil {
			x.lost++
		}
		x.cache.Done(m.ID, err)
	})
	if err := x.cache.Check(); err != nil {
		x.t.Fatal(err)
	}
}

// compute reads what the sequence has and writes what it has not, from a little to all.
func (x *torture) compute(s *sequence) {
	x.readBack(s)
	valid := s.lease.Valid()
	if valid == len(s.tokens) {
		s.tokens = append(s.tokens, int32(x.rng.IntN(3)))
	}
	n := valid + 1 + x.rng.IntN(len(s.tokens)-valid)
	if err := s.lease.Extend(n); err != nil {
		return // no room now
	}
	size := int(x.layout.BlockBytes())
	first := valid / tortureTokens
	for i := first; i*tortureTokens < n; i++ {
		block := x.stage.Bytes()[i*size:][:size]
		tokens := s.tokens[:min((i+1)*tortureTokens, n)]
		content(block, tokens)
		x.sums[fmt.Sprint(tokens)] = crc32.ChecksumIEEE(block)
		x.stream.Copy(x.pool, int64(s.lease.Blocks()[i])*int64(size), x.stage, int64(i*size), int64(size))
	}
	if err := x.stream.Record().Wait(); err != nil {
		x.t.Fatal(err)
	}
	s.lease.Commit(s.tokens, n)
}

// readBack compares all that the sequence may read with its checksums, and with the content itself.
func (x *torture) readBack(s *sequence) {
	valid, size := s.lease.Valid(), int(x.layout.BlockBytes())
	clear(x.stage.Bytes())
	for i := 0; i*tortureTokens < valid; i++ {
		x.stream.Copy(x.stage, int64(i*size), x.pool, int64(s.lease.Blocks()[i])*int64(size), int64(size))
	}
	if err := x.stream.Record().Wait(); err != nil {
		x.t.Fatal(err)
	}
	want := make([]byte, size)
	for i := 0; i*tortureTokens < valid; i++ {
		tokens := s.tokens[:min((i+1)*tortureTokens, valid)]
		content(want, tokens)
		got := x.stage.Bytes()[i*size:][:size]
		if !bytes.Equal(got, want) || crc32.ChecksumIEEE(got) != x.sums[fmt.Sprint(tokens)] {
			x.t.Fatalf("block %d of %v does not hold what was written for it", i, tokens)
		}
		x.checked++
	}
}

// run makes turns and then lets all moves end.
func (x *torture) run(turns int) {
	for range turns {
		x.turn()
	}
	for _, s := range x.live {
		s.lease.Close()
	}
	for x.move(); x.mover.Pending() > 0; x.move() {
		<-x.mover.Notify()
	}
	if got := x.cache.Pending(); got != 0 {
		x.t.Fatalf("%d moves never ended", got)
	}
}

// testTorture runs on a device, with copies that fail and without, by each of its methods.
func testTorture(t *testing.T, dev device.Device, turns int) {
	seed := uint64(time.Now().UnixNano())
	if n, err := strconv.ParseUint(os.Getenv("LARDER_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("seed %d (LARDER_SEED=%d repeats the choices, not the device's timing)", seed, seed)
	var loaded, stored, lost uint64
	for i, fault := range []struct {
		share float64
		late  time.Duration
	}{{0, 0}, {0.05, 0}, {0.3, 0}, {0.05, 20 * time.Microsecond}} {
		for _, m := range []xfer.Method{xfer.Auto, xfer.Rows, xfer.Batch, xfer.Kernel} {
			if !m.Available(dev) {
				continue
			}
			t.Run(fmt.Sprintf("%v/%v/%v", m, fault.share, fault.late), func(t *testing.T) {
				x := newTorture(t, dev, seed+uint64(i), fault.share, fault.late, m)
				x.run(turns)
				in, out := x.mover.Stats(kv.Device), x.mover.Stats(kv.Host)
				t.Logf("%d blocks read back; %d loads, %d stores, %d moves lost, %d of them late", x.checked, in.Moves, out.Moves, x.lost, in.Late)
				if in.Failed+out.Failed != uint64(x.lost) || x.checked == 0 {
					t.Errorf("%d failed, %d were reported", in.Failed+out.Failed, x.lost)
				}
				loaded, stored, lost = loaded+in.Moves, stored+out.Moves, lost+uint64(x.lost)
			})
		}
	}
	if !t.Failed() && (loaded < uint64(turns)/10 || stored == 0 || lost == 0) {
		t.Errorf("%d loads, %d stores, %d lost: the test has no teeth", loaded, stored, lost)
	}
}

// TestTorture is the torture on the CPU device.
func TestTorture(t *testing.T) {
	dev, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	testTorture(t, dev, 1500)
}

// openCUDA opens the GPU, or skips the test where there is none. LARDER_REQUIRE_CUDA=1 makes that a failure.
func openCUDA(t testing.TB) *cuda.Device {
	t.Helper()
	dev, err := cuda.New(cuda.Config{CacheDir: filepath.Join(os.TempDir(), "larder-kernels")})
	if err != nil {
		if os.Getenv("LARDER_REQUIRE_CUDA") == "1" {
			t.Fatal(err)
		}
		t.Skip("no usable GPU: ", err)
	}
	return dev
}

// TestTortureCUDA is the torture on the GPU.
func TestTortureCUDA(t *testing.T) {
	dev := openCUDA(t)
	defer dev.Close()
	testTorture(t, dev, 4000)
}
