package devicetest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"larder/internal/device"
)

// checkMemory allocates: nothing, something, too much.
func checkMemory(t testing.TB, open Open, _ *rand.Rand) error {
	dev := open(t)
	var errs []error
	for _, alloc := range []func(int64) (device.Buffer, error){dev.Alloc, dev.AllocHost} {
		for _, n := range []int64{1 << 50, 1 << 62} {
			if _, err := alloc(n); !errors.Is(err, device.ErrOutOfMemory) {
				errs = append(errs, fmt.Errorf("2^50 bytes and more: %v, want ErrOutOfMemory", err))
			}
		}
		if _, err := alloc(-1); err == nil {
			errs = append(errs, errors.New("-1 bytes are given"))
		}
		for _, n := range []int64{0, 1, 4097, 3 << 20} {
			errs = append(errs, checkBuffer(alloc, n))
		}
	}
	if p, ok := dev.(device.Pinner); ok {
		errs = append(errs, checkPinner(p))
	}
	return errors.Join(append(errs, dev.Close())...)
}

// checkPinner takes host memory the slow way: it is as good as other, and what progress hears grows to the whole.
func checkPinner(p device.Pinner) error {
	var errs []error
	for _, n := range []int64{0, 4097, 65<<20 + 5} {
		var mu sync.Mutex
		var most int64
		errs = append(errs, checkBuffer(func(n int64) (device.Buffer, error) {
			return p.AllocHostSlowly(n, func(done int64) {
				mu.Lock()
				defer mu.Unlock()
				most = max(most, done)
			})
		}, n))
		if most != 0 && most != n || n > 64<<20 && most == 0 {
			errs = append(errs, fmt.Errorf("of %d bytes, progress heard of %d", n, most))
		}
	}
	for _, n := range []int64{-1, 1 << 50} {
		if _, err := p.AllocHostSlowly(n, func(int64) {}); err == nil || n > 0 && !errors.Is(err, device.ErrOutOfMemory) {
			errs = append(errs, fmt.Errorf("%d bytes asked for: %v", n, err))
		}
	}
	return errors.Join(errs...)
}

func checkBuffer(alloc func(int64) (device.Buffer, error), n int64) error {
	b, err := alloc(n)
	if err != nil {
		return err
	}
	if b.Size() != n {
		return fmt.Errorf("a buffer of %d bytes has %d", n, b.Size())
	}
	if m, ok := b.(device.Mapped); ok && n > 0 {
		bytes := m.Bytes()
		if int64(len(bytes)) != n {
			return fmt.Errorf("a buffer of %d bytes shows %d", n, len(bytes))
		}
		if at := uintptr(unsafe.Pointer(&bytes[0])); at%64 != 0 {
			return fmt.Errorf("a buffer of %d bytes starts at %#x", n, at)
		}
		bytes[0], bytes[n-1] = 1, 2
	}
	return errors.Join(b.Free(), b.Free()) // twice is allowed
}

// bench is a device with host memory, device memory as large, and a stream.
type bench struct {
	dev     device.Device
	in, out device.Mapped
	far     device.Buffer
	streams []device.Stream
}

func newBench(t testing.TB, open Open, rng *rand.Rand, n int64, streams int) (*bench, error) {
	b := &bench{dev: open(t)}
	for _, to := range []*device.Mapped{&b.in, &b.out} {
		h, err := b.dev.AllocHost(n)
		if err != nil {
			return b, err
		}
		m, ok := h.(device.Mapped)
		if !ok {
			return b, fmt.Errorf("AllocHost gave %T, which is not Mapped", h)
		}
		*to = m
	}
	for i := range b.in.Bytes() {
		b.in.Bytes()[i] = byte(rng.Uint32())
	}
	var err error
	if b.far, err = b.dev.Alloc(n); err != nil {
		return b, err
	}
	for range streams {
		s, err := b.dev.NewStream("test")
		if err != nil {
			return b, err
		}
		b.streams = append(b.streams, s)
	}
	return b, nil
}

func (b *bench) close(err error) error {
	errs := []error{err}
	for _, s := range b.streams {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, b.dev.Close())...)
}

// checkCopies makes random copies of both kinds to the device and back, and compares with plain loops.
func checkCopies(t testing.TB, open Open, rng *rand.Rand) error {
	const n = 1 << 16
	b, err := newBench(t, open, rng, n, 1)
	if err != nil {
		return b.close(err)
	}
	s := b.streams[0]
	clear(b.out.Bytes())
	s.Copy(b.far, 0, b.out, 0, n)
	far := make([]byte, n)
	for range 200 {
		rows := 1 + rng.IntN(9)
		width := rng.Int64N(2000)
		toPitch, fromPitch := width+rng.Int64N(3000), width+rng.Int64N(3000)
		to, from := rng.Int64N(n-int64(rows-1)*toPitch-width+1), rng.Int64N(n-int64(rows-1)*fromPitch-width+1)
		if rows == 1 {
			s.Copy(b.far, to, b.in, from, width)
		} else {
			s.Copy2D(b.far, to, toPitch, b.in, from, fromPitch, width, rows)
		}
		for r := range int64(rows) {
			copy(far[to+r*toPitch:][:width], b.in.Bytes()[from+r*fromPitch:][:width])
		}
	}
	s.Copy(b.out, 0, b.far, 0, n)
	err = s.Record().Wait()
	if err == nil && !bytes.Equal(far, b.out.Bytes()) {
		err = errors.New("what came back is not what was copied")
	}
	return b.close(err)
}

// checkMany copies lists of pieces to the device and back by each method that it has, and by those that it may not have:
// pieces of all sizes and places, neighbours among them, and lists of none.
func checkMany(t testing.TB, open Open, rng *rand.Rand) error {
	const n = 1 << 20
	b, err := newBench(t, open, rng, n, 1)
	if err != nil {
		return b.close(err)
	}
	if !slices.Contains(b.dev.CopyMethods(), device.CopyEach) {
		return b.close(fmt.Errorf("the device copies by %v, not by each", b.dev.CopyMethods()))
	}
	s := b.streams[0]
	for turn := range 24 {
		how := []device.CopyMethod{device.CopyEach, device.CopyBatch, device.CopyKernel}[turn%3]
		in, out := pieces(rng, n, 1<<(turn%5)), pieces(rng, n, 1<<((turn+1)%5))
		clear(b.out.Bytes())
		s.Copy(b.far, 0, b.out, 0, n)
		far, back := make([]byte, n), make([]byte, n)
		for _, p := range in {
			copy(far[p.Dst:][:p.N], b.in.Bytes()[p.Src:])
		}
		for _, p := range out {
			copy(back[p.Dst:][:p.N], far[p.Src:])
		}
		s.CopyMany(b.far, b.in, in, how)
		s.CopyMany(b.out, b.far, nil, how)
		s.CopyMany(b.out, b.far, out, how)
		if err := s.Record().Wait(); err != nil {
			return b.close(fmt.Errorf("%v: %w", how, err))
		}
		if !bytes.Equal(back, b.out.Bytes()) {
			return b.close(fmt.Errorf("%v, pieces in units of %d bytes: what came back is not what was copied", how, 1<<(turn%5)))
		}
	}
	return b.close(nil)
}

// pieces cuts n bytes at multiples of unit, takes most of the parts, and gives each a place of its own in the
// destination.
func pieces(rng *rand.Rand, n, unit int64) (list []device.Span) {
	for at := int64(0); at < n; {
		size := min(unit*(1+rng.Int64N(1<<rng.IntN(12))), n-at)
		if rng.IntN(5) > 0 {
			list = append(list, device.Span{Src: at, N: size})
		}
		at += size
	}
	rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	at := int64(0)
	for i := range list {
		list[i].Dst = at
		at += list[i].N
	}
	rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// checkOrder makes random large copies among three buffers, each on another stream that waits for the one before, and
// looks at events' times.
func checkOrder(t testing.TB, open Open, rng *rand.Rand) error {
	const n, turns = 1 << 18, 40
	b, err := newBench(t, open, rng, n, 3)
	if err != nil {
		return b.close(err)
	}
	buffers := []device.Buffer{b.in, b.out, b.far}
	want := [][]byte{slices.Clone(b.in.Bytes()), slices.Clone(b.in.Bytes()), slices.Clone(b.in.Bytes())}
	first := b.streams[0]
	first.Copy(b.out, 0, b.in, 0, n)
	first.Copy(b.far, 0, b.in, 0, n)
	events := []device.Event{first.Record()}
	for i := range turns {
		s := b.streams[(i+1)%3]
		s.Wait(events[i])
		order := rng.Perm(3) // of which the first is copied to the second
		from, to, size := rng.Int64N(n/2), rng.Int64N(n/2), n/4+rng.Int64N(n/4)
		s.Copy(buffers[order[1]], to, buffers[order[0]], from, size)
		copy(want[order[1]][to:to+size], want[order[0]][from:from+size])
		events = append(events, s.Record())
	}
	err = checkEvents(events)
	if err == nil && (!bytes.Equal(want[0], b.in.Bytes()) || !bytes.Equal(want[1], b.out.Bytes())) {
		err = errors.New("copies that wait for each other ran in another order")
	}
	return b.close(err)
}

// checkEvents waits for events from several goroutines and checks that they were reached in order.
func checkEvents(events []device.Event) error {
	errs := make([]error, len(events))
	var wait sync.WaitGroup
	for i, e := range events {
		wait.Go(func() {
			if errs[i] = e.Wait(); errs[i] == nil && !e.Done() {
				errs[i] = errors.New("an event is not done after Wait")
			}
		})
	}
	wait.Wait()
	var last time.Duration
	for i, e := range events {
		if at := e.Time(); at < last {
			errs = append(errs, fmt.Errorf("event %d was reached at %v, the one that it waits for at %v", i, at, last))
		} else {
			last = at
		}
	}
	return errors.Join(errs...)
}

// checkStreamErrors copies outside a buffer. The error shows at every later point and in a stream that waits for one;
// what is queued behind it is not done.
func checkStreamErrors(t testing.TB, open Open, rng *rand.Rand) error {
	const n = 4096
	for name, bad := range map[string]func(b *bench, s device.Stream){
		"behind the end":    func(b *bench, s device.Stream) { s.Copy(b.out, 1, b.in, 0, n) },
		"before the start":  func(b *bench, s device.Stream) { s.Copy(b.out, 0, b.in, -1, 10) },
		"a negative length": func(b *bench, s device.Stream) { s.Copy(b.out, 0, b.in, 0, -1) },
		"the last row":      func(b *bench, s device.Stream) { s.Copy2D(b.out, 0, 2048, b.in, 0, 64, 64, 3) },
		"pitches that wrap": func(b *bench, s device.Stream) { s.Copy2D(b.out, 0, 1<<62, b.in, 0, 1<<62, 64, 5) },
		"a piece of many": func(b *bench, s device.Stream) {
			s.CopyMany(b.out, b.in, []device.Span{{Dst: 0, Src: 0, N: 16}, {Dst: n - 16, Src: 0, N: 32}}, device.CopyBatch)
		},
		"a piece by a kernel": func(b *bench, s device.Stream) {
			s.CopyMany(b.out, b.in, []device.Span{{Dst: 0, Src: 16, N: n}}, device.CopyKernel)
		},
		"an offset that wraps": func(b *bench, s device.Stream) { s.Copy(b.out, 1<<63-1, b.in, 1<<63-1, 64) },
	} {
		b, err := newBench(t, open, rng, n, 2)
		if err == nil {
			err = b.afterError(bad)
		}
		if err := errors.Join(err, b.dev.Close()); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (b *bench) afterError(bad func(b *bench, s device.Stream)) error {
	clear(b.out.Bytes())
	before, s, other := b.streams[0].Record(), b.streams[0], b.streams[1]
	bad(b, s)
	at := s.Record()
	s.Copy(b.out, 0, b.in, 0, b.in.Size())
	later := s.Record()
	other.Wait(later)
	other.Copy(b.out, 0, b.in, 0, b.in.Size())
	behind := other.Record()
	if err := before.Wait(); err != nil {
		return fmt.Errorf("the point before the error: %w", err)
	}
	for name, e := range map[string]device.Event{"the point": at, "a later point": later, "a stream that waits for it": behind} {
		if e.Wait() == nil {
			return fmt.Errorf("%s reports no error", name)
		}
	}
	if s.Close() == nil || other.Close() == nil {
		return errors.New("closing reports no error")
	}
	if !bytes.Equal(b.out.Bytes(), make([]byte, b.out.Size())) {
		return errors.New("something was copied after the error")
	}
	return nil
}
