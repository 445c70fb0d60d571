package cuda

import (
	"errors"
	"fmt"
	"time"

	"larder/internal/device"
)

type readArgs struct {
	src uintptr
	n   int64
	out uintptr
}

// Sizes that the ceilings are measured with.
const (
	gemmSide     = 8192
	readBytes    = 4 << 30
	linkBytes    = 256 << 20
	ceilingTurns = 5
)

// Ceilings implements device.Device.
func (d *Device) Ceilings() ([]device.Ceiling, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	var out []device.Ceiling
	for _, measure := range []func() ([]device.Ceiling, error){d.gemmCeiling, d.readCeiling, d.linkCeilings} {
		c, err := measure()
		if err != nil {
			return nil, err
		}
		out = append(out, c...)
	}
	return out, nil
}

// best is the shortest time of a few turns of what f queues, after one that does not count.
func (d *Device) best(s *stream, f func() error) (time.Duration, error) {
	var least time.Duration
	for i := range ceilingTurns + 1 {
		from := s.Record()
		s.do(f)
		to := s.Record()
		if err := to.Wait(); err != nil {
			return 0, err
		}
		if t := to.Time() - from.Time(); i == 1 || i > 1 && t < least {
			least = t
		}
	}
	return least, nil
}

// gemmCeiling is this device's own product, the one that the projections use.
func (d *Device) gemmCeiling() (out []device.Ceiling, err error) {
	const n = gemmSide
	dummy := device.Dummy{Seed: 1, Scale: 1}
	a, err := d.Matrix(device.Tensor{Name: "a", Shape: []int{n, n}, Dummy: dummy})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, freeAll(a.(*matrix).b)) }()
	to, err := d.alloc(n*n*2, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, to.Free()) }()
	s, err := d.newStream()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	c := &compute{dev: d, stream: s}
	m := a.(*matrix)
	t, err := d.best(s, func() error {
		return c.multiply("store16", product{a: m.b.ptr, lda: n, w: m, c: to.ptr, ldc: n, m: n})
	})
	if err != nil {
		return nil, err
	}
	return []device.Ceiling{{Name: device.CeilingGEMM, Value: 2 * n * n * n / t.Seconds(), Unit: "FLOP/s",
		How: fmt.Sprintf("own bf16 product of %d x %d x %d on random values, best of %d", n, n, n, ceilingTurns)}}, nil
}

// readCeiling streams memory through a kernel that only reads.
func (d *Device) readCeiling() (out []device.Ceiling, err error) {
	b, err := d.zeroed(readBytes)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Free()) }()
	s, err := d.newStream()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	t, err := d.best(s, func() error {
		return launch(d, s.handle, "read_all", d.units*8, 1, 512, &readArgs{b.ptr, readBytes / 16, b.ptr})
	})
	if err != nil {
		return nil, err
	}
	return []device.Ceiling{{Name: device.CeilingMemory, Value: readBytes / t.Seconds(), Unit: "B/s",
		How: fmt.Sprintf("a kernel that reads %d MiB, best of %d", readBytes>>20, ceilingTurns)}}, nil
}

// linkCeilings copies each way alone, then both ways at once.
func (d *Device) linkCeilings() (out []device.Ceiling, err error) {
	var bufs []*buffer
	defer func() { err = errors.Join(err, freeAll(bufs...)) }()
	for i := range 4 {
		b, err := d.alloc(linkBytes, i%2 == 1)
		if err != nil {
			return nil, err
		}
		bufs = append(bufs, b)
	}
	one, err := d.newStream()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, one.Close()) }()
	two, err := d.newStream()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, two.Close()) }()
	in := func() error {
		return errors.Join(one.copy(bufs[0].ptr, 0, bufs[1].ptr, 0, linkBytes, 1), one.copy(bufs[0].ptr, 0, bufs[1].ptr, 0, linkBytes, 1))
	}
	back := func(s *stream) error {
		return errors.Join(s.copy(bufs[3].ptr, 0, bufs[2].ptr, 0, linkBytes, 1), s.copy(bufs[3].ptr, 0, bufs[2].ptr, 0, linkBytes, 1))
	}
	tIn, err := d.best(one, in)
	if err != nil {
		return nil, err
	}
	tOut, err := d.best(one, func() error { return back(one) })
	if err != nil {
		return nil, err
	}
	tBoth, err := d.best(one, func() error {
		two.Wait(one.Record())
		two.do(func() error { return back(two) })
		if err := in(); err != nil {
			return err
		}
		one.Wait(two.Record())
		return errors.Join(one.err, two.err)
	})
	if err != nil {
		return nil, err
	}
	how := fmt.Sprintf("pinned memory, two copies of %d MiB in a row, best of %d", linkBytes>>20, ceilingTurns)
	return []device.Ceiling{
		{Name: device.CeilingHostToDev, Value: 2 * linkBytes / tIn.Seconds(), Unit: "B/s", How: how},
		{Name: device.CeilingDevToHost, Value: 2 * linkBytes / tOut.Seconds(), Unit: "B/s", How: how},
		{Name: device.CeilingCopyDuplex, Value: 4 * linkBytes / tBoth.Seconds(), Unit: "B/s", How: how + ", both ways at once"},
	}, nil
}
