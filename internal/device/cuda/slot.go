package cuda

import (
	"errors"
	"sync"
	"unsafe"

	"larder/internal/device"
	"larder/internal/sample"
)

// slot is what a pass has to itself. There are two, so that the CPU prepares a pass while the GPU runs the one before;
// all other memory is shared, because passes run in order on one stream. It is the device.Pass as well.
type slot struct {
	c      *compute
	plan   plan
	chosen *buffer       // int32 [sequences]: the greedy choices, on the GPU
	answer *buffer       // the same on the host
	rows   scratch       // fp32 [hosted][vocabulary up to 4] on the host
	batch  *device.Batch // nil: no pass has begun
	ids    []int32       // of the batch; what the host had to find out is filled in
	asked  []*sample.Draw
	hosted int          // draws that the host makes, from logits
	headed bool         // Head was called
	done   device.Event // the end of the pass; nil before End
	err    error        // what went wrong before the end

	mu      sync.Mutex // guards what follows
	settled bool
	tokens  []int32
	failure error
}

// open takes the memory of all passes to come.
func (s *slot) open(c *compute) error {
	s.c = c
	s.plan.far.dev = c.dev
	s.plan.near.dev, s.plan.near.host = c.dev, true
	s.rows.dev, s.rows.host = c.dev, true
	n := int64(c.spec.MaxSeqs) * 4
	var err, err2 error
	s.chosen, err = c.dev.alloc(n, false)
	s.answer, err2 = c.dev.alloc(n, true)
	return errors.Join(err, err2)
}

// byHost says that the host makes a draw: all but the plain greedy one.
func byHost(d *sample.Draw) bool { return !d.Greedy() || len(d.Banned) > 0 }

// clear waits until the slot's last pass is over, for its plan is in use until then. What it failed of is its own.
func (s *slot) clear() error {
	switch {
	case s.batch == nil:
		return nil
	case s.done != nil:
		_ = s.done.Wait() // Wait says so
		return nil
	}
	return s.c.sync() // it was left without End
}

func (c *compute) sync() error {
	return c.dev.on(func() error {
		return c.dev.drv.call("cuStreamSynchronize", c.dev.drv.streamSync, c.stream.handle)
	})
}

// known copies ids to dst. Where one is of a draw of this pass that the host makes, it waits for the pass and fills them
// all in; else the GPU looks them up.
func (s *slot) known(ids, dst []int32) ([]int32, error) {
	dst = append(dst[:0], ids...)
	drawn, hosted := false, false
	for _, id := range ids {
		if id < 0 {
			drawn = true
			hosted = hosted || byHost(s.asked[-1-id])
		}
	}
	if drawn && s.err != nil {
		return dst, s.err
	}
	if !hosted {
		return dst, nil
	}
	tokens, err := s.Wait()
	if err != nil {
		return dst, err
	}
	for i, id := range dst {
		if id < 0 {
			dst[i] = max(tokens[-1-id], 0)
		}
	}
	return dst, nil
}

func (s *slot) begin(b *device.Batch, ids []int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.batch, s.ids, s.done, s.err, s.settled, s.failure = b, ids, nil, nil, false, nil
	s.asked, s.hosted, s.headed = s.asked[:0], 0, false
	for i := range b.Seqs {
		if d := b.Seqs[i].Draw; d != nil {
			s.asked = append(s.asked, d)
			if byHost(d) {
				s.hosted++
			}
		}
	}
}

// fetch queues copies of the logits that the host draws from.
func (s *slot) fetch(c *compute) error {
	s.headed = true
	if s.hosted == 0 {
		return nil
	}
	pitch := c.vocabPitch() * 4
	if err := s.rows.need(int64(s.hosted) * pitch); err != nil {
		return err
	}
	at := uintptr(0)
	for i, d := range s.asked {
		if !byHost(d) {
			continue
		}
		from := c.logits.b.ptr + uintptr(int64(i)*pitch)
		if err := c.dev.drv.call("cuMemcpyAsync", c.dev.drv.copyAsync, s.rows.b.ptr+at, from, uintptr(pitch), c.stream.handle); err != nil {
			return err
		}
		at += uintptr(pitch)
	}
	return nil
}

// end marks the end of the pass.
func (s *slot) end(c *compute) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done, s.err = c.stream.Record(), c.err
	if len(s.asked) > 0 && !s.headed && s.err == nil {
		s.err = errors.New("cuda: a draw without a head")
	}
}

// Wait implements device.Pass.
func (s *slot) Wait() ([]int32, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settled {
		return s.tokens, s.failure
	}
	s.settled, s.tokens = true, s.tokens[:0]
	if s.failure = errors.Join(s.err, s.done.Wait()); s.failure != nil {
		return nil, s.failure
	}
	answer := unsafe.Slice((*int32)(s.answer.host), s.c.spec.MaxSeqs)
	row := 0
	for i, d := range s.asked {
		if byHost(d) {
			s.tokens = append(s.tokens, sample.Pick(s.row(row), d))
			row++
		} else {
			s.tokens = append(s.tokens, answer[i])
		}
	}
	return s.tokens, nil
}

// row is the i-th row of logits that the host draws from.
func (s *slot) row(i int) []float32 {
	pitch := int(s.c.vocabPitch())
	return unsafe.Slice((*float32)(s.rows.b.host), (i+1)*pitch)[i*pitch:][:s.c.cfg.VocabSize]
}
