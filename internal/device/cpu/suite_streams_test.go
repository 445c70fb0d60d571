package cpu_test

import (
	"bytes"
	"testing"

	"larder/internal/device"
)

// testCopies compares random copies, flat and in two dimensions, with the same done on slices.
func testCopies(t *testing.T, c Config) {
	d, rng := c.open(t), newRand(t, 21)
	const size = 1 << 16
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(rng.Uint32())
	}
	from := bytes.Clone(want)
	dev, err := d.Alloc(size)
	check(t, err)
	defer dev.Free()
	write(t, d, dev, want)
	host, err := d.AllocHost(size)
	check(t, err)
	defer host.Free()
	copy(host.(device.Mapped).Bytes(), from)
	s, err := d.NewStream("copies")
	check(t, err)
	for range 200 {
		width, rows := 1+rng.IntN(200), 1+rng.IntN(20)
		to, src := width+rng.IntN(100), width+rng.IntN(100)
		dstOff, srcOff := rng.IntN(size-20*300), rng.IntN(size-20*300)
		s.Copy2D(dev, int64(dstOff), int64(to), host, int64(srcOff), int64(src), int64(width), rows)
		for r := range rows {
			copy(want[dstOff+r*to:][:width], from[srcOff+r*src:])
		}
		n := rng.IntN(1000)
		s.Copy(dev, int64(dstOff), host, int64(srcOff), int64(n))
		copy(want[dstOff:dstOff+n], from[srcOff:])
	}
	check(t, s.Close())
	if !bytes.Equal(read(t, d, dev), want) {
		t.Error("the copies left other bytes")
	}
}

// testStreamOrder sends bytes through a chain of buffers on two streams that wait for each other.
func testStreamOrder(t *testing.T, c Config) {
	d := c.open(t)
	const size, links = 1 << 20, 40
	var bufs []device.Buffer
	for range 3 {
		b, err := d.Alloc(size)
		check(t, err)
		defer b.Free()
		bufs = append(bufs, b)
	}
	write(t, d, bufs[0], bytes.Repeat([]byte{7}, size))
	var streams [2]device.Stream
	for i := range streams {
		var err error
		streams[i], err = d.NewStream("chain")
		check(t, err)
	}
	var events []device.Event
	for i := range links {
		s := streams[i%2]
		if i > 0 {
			s.Wait(events[i-1])
		}
		s.Copy(bufs[(i+1)%3], 0, bufs[i%3], 0, size)
		events = append(events, s.Record())
	}
	check(t, events[links-1].Wait())
	for i, e := range events {
		if !e.Done() {
			t.Fatalf("event %d is not done, the last is", i)
		}
		if i > 0 && e.Time() < events[i-1].Time() {
			t.Errorf("event %d at %v, the one before it at %v", i, e.Time(), events[i-1].Time())
		}
	}
	for _, s := range streams {
		check(t, s.Close())
	}
	if got := read(t, d, bufs[links%3]); !bytes.Equal(got, bytes.Repeat([]byte{7}, size)) {
		t.Error("the chain lost bytes")
	}
}
