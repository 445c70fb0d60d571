package kvbench

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"larder/internal/device"
	"larder/internal/kv"
)

// pattern fills block with words that name what the block is, so that a copy to a wrong place shows.
func pattern(block []byte, owner, ordinal int) {
	z := uint64(owner)<<32 | uint64(ordinal)
	for i := 0; i+8 <= len(block); i += 8 {
		z += 0x9E3779B97F4A7C15
		binary.LittleEndian.PutUint64(block[i:], z*0xBF58476D1CE4E5B9)
	}
}

// ownerOf tells a request's host blocks and a slot's device blocks apart in patterns.
func ownerOf(d Direction, n int) int { return int(d)<<16 + n }

func (r *rig) hostBytes(b kv.BlockID) []byte {
	size := r.cfg.Layout.BlockBytes()
	return r.bytes[int64(b)*size : int64(b+1)*size]
}

// fill puts known content into every source of the phase and poison into every host destination.
func (r *rig) fill(d Direction) error {
	n := r.cfg.BlocksPerRequest()
	for index := range r.cfg.Requests {
		for i := range n {
			if d&Load != 0 {
				pattern(r.hostBytes(r.hostBlock(index, Load, i)), ownerOf(Load, index), i)
			}
			if d&Store != 0 {
				pattern(r.hostBytes(r.hostBlock(index, Store, i)), ownerOf(Store, index), i)
			}
		}
	}
	if d&Store == 0 {
		return nil
	}
	if err := r.throughStream(func(s device.Stream) {
		for slot := range r.cfg.inFlight() {
			for i := range n {
				r.copyBlock(s, r.dev, r.devBlock(slot, Store, i), r.host, r.hostBlock(slot, Store, i))
			}
		}
	}); err != nil {
		return err
	}
	for index := range r.cfg.Requests {
		for i := range n {
			clear(r.hostBytes(r.hostBlock(index, Store, i)))
		}
	}
	return nil
}

func (r *rig) copyBlock(s device.Stream, dst device.Buffer, to kv.BlockID, src device.Buffer, from kv.BlockID) {
	size := r.cfg.Layout.BlockBytes()
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
	directions := int64(1)
	if d == Duplex {
		directions = 2
	}
	want := int64(len(batches)) * int64(r.cfg.Requests) * directions * r.cfg.BytesPerRequest()
	out := []Check{{
		Name:   fmt.Sprintf("%v: bytes moved = bytes planned", d),
		OK:     r.moved == want,
		Detail: fmt.Sprintf("%d bytes counted, %d planned", r.moved, want),
	}, r.rateCheck(d, batches)}
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
	c := Check{Name: fmt.Sprintf("%v: what was loaded is what the host held", d), OK: true}
	n := r.cfg.BlocksPerRequest()
	size := r.cfg.Layout.BlockBytes()
	staging, err := r.mem.AllocHost(int64(n) * size)
	if err != nil {
		return c, err
	}
	defer staging.Free()
	got := staging.(device.Mapped).Bytes()
	blocks := 0
	for slot, index := range r.lastUser {
		if err := r.throughStream(func(s device.Stream) {
			for i := range n {
				r.copyBlock(s, staging, kv.BlockID(i), r.dev, r.devBlock(slot, Load, i))
			}
		}); err != nil {
			return c, err
		}
		for i := range n {
			blocks++
			if !bytes.Equal(got[int64(i)*size:int64(i+1)*size], r.hostBytes(r.hostBlock(index, Load, i))) {
				c.OK = false
				c.Detail = fmt.Sprintf("request %d, block %d differs", index, i)
				return c, nil
			}
		}
	}
	c.Detail = fmt.Sprintf("%d blocks compared", blocks)
	return c, nil
}

// storedRight compares every request's host blocks with the content of the slot that it stored from.
func (r *rig) storedRight(d Direction) Check {
	c := Check{Name: fmt.Sprintf("%v: what was stored is what the device held", d), OK: true}
	want := make([]byte, r.cfg.Layout.BlockBytes())
	for index, slot := range r.slotOf {
		for i := range r.cfg.BlocksPerRequest() {
			pattern(want, ownerOf(Store, slot), i)
			if !bytes.Equal(want, r.hostBytes(r.hostBlock(index, Store, i))) {
				c.OK = false
				c.Detail = fmt.Sprintf("request %d, block %d differs", index, i)
				return c
			}
		}
	}
	c.Detail = fmt.Sprintf("%d blocks compared", len(r.slotOf)*r.cfg.BlocksPerRequest())
	return c
}
