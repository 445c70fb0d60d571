package kvbench

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"sync"

	"larder/internal/device"
	"larder/internal/kv"
)

// content names what a block holds: in which phase, for which direction, of which request (loads) or slot (stores), and
// which of its blocks. No two of a run are alike, so a copy that is missing, stale or in a wrong place shows.
type content struct {
	phase, direction Direction
	owner, ordinal   int
}

// fill writes the content into a block.
func (c content) fill(block []byte) {
	z := uint64(c.phase)<<62 | uint64(c.direction)<<60 | uint64(c.owner)<<28 | uint64(c.ordinal)
	next := func() uint64 {
		z += 0x9E3779B97F4A7C15
		return z * 0xBF58476D1CE4E5B9
	}
	for len(block) >= 8 {
		binary.LittleEndian.PutUint64(block, next())
		block = block[8:]
	}
	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], next())
	copy(block, word[:])
}

// size is that of a unit in bytes.
func (r *rig) size() int64 {
	l := r.cfg.unit()
	return l.BlockBytes()
}

func (r *rig) hostBytes(b kv.BlockID) []byte {
	size := r.size()
	return r.bytes[int64(b)*size : int64(b+1)*size]
}

// fill puts known content into every source of the phase and clears what the host shall receive. What the device shall
// receive it has not: contents name the phase.
func (r *rig) fill(d Direction) error {
	if d&Load != 0 {
		r.eachHost(Load, func(b []byte, index, i int) { content{d, Load, index, i}.fill(b) })
	}
	if d&Store == 0 {
		return nil
	}
	r.eachHost(Store, func(b []byte, index, i int) { content{d, Store, index, i}.fill(b) })
	err := r.throughStream(func(s device.Stream) {
		for slot := range r.cfg.inFlight() { // slot n begins with what would be region n's
			for i := range r.cfg.units() {
				r.copyBlock(s, r.dev, r.devBlock(slot, Store, i), r.host, r.hostBlock(slot, Store, i))
			}
		}
	})
	r.eachHost(Store, func(b []byte, _, _ int) { clear(b) })
	return err
}

// eachHost calls f for every unit of a direction on the host, by as many goroutines as there are cores.
func (r *rig) eachHost(d Direction, f func(block []byte, region, i int)) {
	regions := r.cfg.regions()
	if d == Store {
		regions = r.cfg.storeRegions()
	}
	var wait sync.WaitGroup
	workers := min(runtime.GOMAXPROCS(0), regions)
	for w := range workers {
		wait.Go(func() {
			for region := w; region < regions; region += workers {
				for i := range r.cfg.units() {
					f(r.hostBytes(r.hostBlock(region, d, i)), region, i)
				}
			}
		})
	}
	wait.Wait()
}

func (r *rig) copyBlock(s device.Stream, dst device.Buffer, to kv.BlockID, src device.Buffer, from kv.BlockID) {
	size := r.size()
	s.Copy(dst, int64(to)*size, src, int64(from)*size, size)
}

// throughStream runs copies on a stream of their own and waits for them.
func (r *rig) throughStream(queue func(device.Stream)) error {
	s, err := r.mem.NewStream("kvbench check")
	if err != nil {
		return err
	}
	queue(s)
	err = s.Record().Wait()
	if closed := s.Close(); err == nil {
		err = closed
	}
	return err
}

// checks compares the bytes that the mover counted with those that the plan says, and the contents that arrived.
func (r *rig) checks(d Direction, batches []batch) ([]Check, error) {
	out := []Check{r.countCheck(d, batches), r.rateCheck(d, batches)}
	if d&Load != 0 {
		c, err := r.loadedRight(d)
		if err != nil {
			return out, err
		}
		out = append(out, c)
	}
	if d&Store != 0 {
		out = append(out, r.storedRight(d))
	}
	return out, nil
}

// countCheck proves that the mover moved what was asked of it, as its trace counts.
func (r *rig) countCheck(d Direction, batches []batch) Check {
	directions := int64(1)
	if d == Duplex {
		directions = 2
	}
	want := int64(len(batches)) * int64(r.cfg.Requests) * directions * r.cfg.BytesPerRequest()
	return Check{
		Name:   fmt.Sprintf("%v: bytes moved = bytes planned", d),
		OK:     r.moved == want,
		Detail: fmt.Sprintf("%d bytes counted, %d planned", r.moved, want),
	}
}

// rateCheck proves bytes = bandwidth x time for the batch figures, against the count that the mover's trace gave.
func (r *rig) rateCheck(d Direction, batches []batch) Check {
	figures := Phase{Metrics: perBatch(d, batches, 0)}
	span, _ := figures.Find(makespanName)
	rate, _ := figures.Find(batchRateName(d))
	var bytes float64
	for i := range span.Samples {
		bytes += rate.Samples[i] * gib * span.Samples[i] / 1e3
	}
	return Check{
		Name:   fmt.Sprintf("%v: bandwidth x makespan = bytes", d),
		OK:     math.Abs(bytes-float64(r.moved)) <= 0.001*float64(r.moved),
		Detail: fmt.Sprintf("%.0f bytes by bandwidth x time, %d by count", bytes, r.moved),
	}
}

// loadedRight reads the device's load blocks back: each slot must hold the last request that used it, whole.
func (r *rig) loadedRight(d Direction) (Check, error) {
	whole := Check{Name: fmt.Sprintf("%v: what was loaded is what the host held", d), OK: true}
	n, size := r.cfg.units(), r.size()
	staging, err := r.mem.AllocHost(int64(n) * size)
	if err != nil {
		return whole, err
	}
	defer staging.Free()
	blocks := 0
	got := staging.(device.Mapped).Bytes()
	for slot, index := range r.lastUser {
		if err := r.throughStream(func(s device.Stream) {
			for i := range n {
				r.copyBlock(s, staging, kv.BlockID(i), r.dev, r.devBlock(slot, Load, i))
			}
		}); err != nil {
			return whole, err
		}
		load, _ := r.regions(index, slot)
		parts := make([]comparison, min(runtime.GOMAXPROCS(0), n))
		var wait sync.WaitGroup
		for w := range parts {
			wait.Go(func() {
				c := &parts[w]
				c.OK, c.want = true, make([]byte, size)
				for i := w; i < n; i += len(parts) {
					c.compare(got[int64(i)*size:int64(i+1)*size], content{d, Load, load, i}, index)
				}
			})
		}
		wait.Wait()
		blocks += whole.add(parts)
	}
	if whole.OK {
		whole.Detail = fmt.Sprintf("%d blocks compared", blocks)
	}
	return whole, nil
}

// add takes over the first fault of the parts, and says how many blocks they compared.
func (k *Check) add(parts []comparison) (blocks int) {
	for i := range parts {
		p := &parts[i]
		blocks += p.blocks
		if k.OK && !p.OK {
			k.OK, k.Detail = false, p.Detail
		}
	}
	return blocks
}

// storedRight compares what is stored on the host with the content of the slot that it came from.
func (r *rig) storedRight(d Direction) Check {
	parts := make([]comparison, r.cfg.storeRegions())
	for i := range parts {
		parts[i].OK = true
	}
	r.eachHost(Store, func(b []byte, region, i int) {
		c := &parts[region]
		if c.want == nil {
			c.want = make([]byte, r.size())
		}
		c.compare(b, content{d, Store, r.slotOf[region], i}, region)
	})
	whole := Check{Name: fmt.Sprintf("%v: what was stored is what the device held", d), OK: true}
	blocks := whole.add(parts)
	if whole.OK {
		whole.Detail = fmt.Sprintf("%d blocks compared", blocks)
	}
	return whole
}

// comparison is one goroutine's part of a check of contents.
type comparison struct {
	OK     bool
	Detail string
	want   []byte
	blocks int
}

// compare holds got to what it should be; the first difference is kept.
func (c *comparison) compare(got []byte, want content, request int) {
	c.blocks++
	want.fill(c.want)
	if c.OK && !bytes.Equal(got, c.want) {
		c.OK = false
		c.Detail = fmt.Sprintf("request %d, block %d differs", request, want.ordinal)
	}
}
