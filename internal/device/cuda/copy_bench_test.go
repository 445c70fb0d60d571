package cuda

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"larder/internal/device"
)

// copyRig is memory of both kinds and a stream each way.
type copyRig struct {
	d         *Device
	near, far [2]*buffer // GPU and host; one pair for each way
	streams   [2]*stream
}

const copyBytes = 512 << 20

func newCopyRig(b *testing.B) *copyRig {
	r := &copyRig{d: openTest(b)}
	b.Cleanup(func() {
		if err := r.d.Close(); err != nil {
			b.Error(err)
		}
	})
	for i := range r.near {
		var err error
		if r.near[i], err = r.d.alloc(copyBytes, false); err != nil {
			b.Fatal(err)
		}
		if r.far[i], err = r.d.pin(copyBytes, nil); err != nil {
			b.Fatal(err)
		}
		if r.streams[i], err = r.d.newStream(); err != nil {
			b.Fatal(err)
		}
	}
	return r
}

// scattered are pieces of n bytes in random order on both sides, bytes in all.
func scattered(n, bytes int64) []device.Span {
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	places := int(copyBytes / n)
	src, dst := rng.Perm(places), rng.Perm(places)
	out := make([]device.Span, min(bytes/n, int64(places)))
	for i := range out {
		out[i] = device.Span{Src: int64(src[i]) * n, Dst: int64(dst[i]) * n, N: n}
	}
	return out
}

// queue hands pieces over in groups of about group bytes with a timed point behind each.
func (r *copyRig) queue(way int, pieces []device.Span, group int64, how func(s *stream, dst, src uintptr, p []device.Span) error) {
	s, dst, src := r.streams[way], r.near[way].ptr, r.far[way].ptr
	if way == 1 {
		dst, src = src, dst
	}
	each := max(int(group/pieces[0].N), 1)
	for len(pieces) > 0 {
		n := min(each, len(pieces))
		s.do(func() error { return how(s, dst, src, pieces[:n]) })
		s.Record()
		pieces = pieces[n:]
	}
}

// BenchmarkCopyMany moves 256 MiB in scattered pieces: each method, each way and both ways at once, at each size of a
// piece, in groups with a timed point behind each. The rate is the GPU's, the submit time the host's.
func BenchmarkCopyMany(b *testing.B) {
	r := newCopyRig(b)
	kernel := func(blocks int) func(s *stream, dst, src uintptr, p []device.Span) error {
		return func(s *stream, dst, src uintptr, p []device.Span) error { return s.copyKernel(dst, src, p, blocks) }
	}
	methods := []struct {
		name  string
		group int64
		how   func(s *stream, dst, src uintptr, p []device.Span) error
	}{
		{"each+point", 1, (*stream).copyEach},
		{"each", 16 << 20, (*stream).copyEach},
		{"batch", 16 << 20, (*stream).copyBatch},
		{"batch/2MiB", 2 << 20, (*stream).copyBatch},
		{"kernel8", 16 << 20, kernel(8)},
		{"kernel16", 16 << 20, kernel(16)},
		{"kernel32", 16 << 20, kernel(32)},
	}
	for _, size := range []int64{4 << 10, 16 << 10, 64 << 10, 128 << 10, 512 << 10, 6 << 20} {
		bytes := min(int64(256<<20), size*4096) / size * size
		pieces := scattered(size, bytes)
		for _, m := range methods {
			for ways, name := range []string{"load", "store", "both"} {
				b.Run(fmt.Sprintf("%dKiB/%s/%s", size>>10, m.name, name), func(b *testing.B) {
					r.rate(b, ways, func(way int) { r.queue(way, pieces, m.group, m.how) }, bytes)
				})
			}
		}
	}
}

// rate times b.N turns of f, on one stream or on both at once.
func (r *copyRig) rate(b *testing.B, ways int, f func(way int), bytes int64) {
	b.Helper()
	var on []int
	if ways != 1 {
		on = append(on, 0)
	}
	if ways != 0 {
		on = append(on, 1)
	}
	var spent, host time.Duration
	for range b.N {
		from := r.streams[on[0]].Record()
		r.streams[on[len(on)-1]].Wait(from)
		began := time.Now()
		for _, way := range on {
			f(way)
		}
		host += time.Since(began)
		var end time.Duration
		for _, way := range on {
			e := r.streams[way].Record()
			if err := e.Wait(); err != nil {
				b.Fatal(err)
			}
			end = max(end, e.Time())
		}
		spent += end - from.Time()
	}
	b.ReportMetric(float64(bytes)*float64(len(on))*float64(b.N)/spent.Seconds()/(1<<30), "GiB/s")
	b.ReportMetric(float64(host.Microseconds())/float64(b.N), "submit-us/op")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkPin takes 8 GiB of pinned memory: from the driver, and as huge pages that many cores take.
func BenchmarkPin(b *testing.B) {
	d := openTest(b)
	b.Cleanup(func() {
		if err := d.Close(); err != nil {
			b.Error(err)
		}
	})
	b.Logf("NUMA node %d", d.Node())
	const size = 8 << 30
	for name, take := range map[string]func() (*buffer, error){
		"driver":   func() (*buffer, error) { return d.alloc(size, true) },
		"register": func() (*buffer, error) { return d.pin(size, nil) },
	} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				m, err := take()
				if err != nil {
					b.Fatal(err)
				}
				if err := m.Free(); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(size)
		})
	}
}
