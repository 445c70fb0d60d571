package cpu

import (
	"fmt"
	"sync"
	"time"

	"larder/internal/device"
	"larder/internal/device/cpu/gemm"
)

// How much each ceiling works: enough to outlast a scheduling hiccup, a second or two in all.
const (
	peakTime    = 250 * time.Millisecond
	peakTurn    = 2 * time.Millisecond
	readBytes   = 1 << 30
	readWindows = 8 // timed apart: a window that nobody disturbs counts
	copyBytes   = 256 << 20
	ceilingRuns = 4
)

// Ceilings implements device.Device. Each is the best of a few runs: a ceiling is what the machine can do, not what it
// does when something else runs.
func (d *Device) Ceilings() ([]device.Ceiling, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	read, err := d.readRate()
	if err != nil {
		return nil, err
	}
	in, out, both, err := d.copyRates()
	if err != nil {
		return nil, err
	}
	threads := fmt.Sprintf("%d threads", d.cfg.Threads)
	return []device.Ceiling{
		{Name: device.CeilingGEMM, Value: d.peakRate(), Unit: "FLOP/s", How: "multiply-adds of " + d.family.Name + " in registers, " + threads},
		{Name: device.CeilingMemory, Value: read, Unit: "B/s", How: "summing 1 GiB, " + threads},
		{Name: device.CeilingHostToDev, Value: in, Unit: "B/s", How: "256 MiB copied on one stream"},
		{Name: device.CeilingDevToHost, Value: out, Unit: "B/s", How: "256 MiB copied on one stream"},
		{Name: device.CeilingCopyDuplex, Value: both, Unit: "B/s", How: "256 MiB each way at once on two streams"},
	}, nil
}

// peakRate is the sum over the threads, all at work, of each one's best short turn: what the processor does when
// nobody interrupts it.
func (d *Device) peakRate() float64 {
	rates := make([]float64, d.team.size)
	var ready sync.WaitGroup
	ready.Add(len(rates))
	d.team.run(len(rates), func(_, task int) {
		ready.Done()
		ready.Wait()
		rates[task] = d.bestTurn()
	})
	sum := 0.0
	for _, r := range rates {
		sum += r
	}
	return sum
}

// bestTurn repeats turns of about peakTurn for peakTime and returns the best one's operations per second.
func (d *Device) bestTurn() float64 {
	best, turns := 0.0, 1000
	for began := time.Now(); best == 0 || time.Since(began) < peakTime; {
		turn := time.Now()
		ops := d.family.Peak(turns)
		took := time.Since(turn)
		if took < peakTurn/2 {
			turns *= 2
			continue
		}
		best = max(best, ops/took.Seconds())
	}
	return best
}

// readRate sums a buffer that no cache holds.
func (d *Device) readRate() (float64, error) {
	b, err := alloc(readBytes)
	if err != nil {
		return 0, err
	}
	defer b.Free()
	const part = 4 << 20
	sums := make([]uint64, readBytes/part)
	words := slice[uint64](b.bytes, 0, readBytes/8)
	d.team.run(len(sums), func(_, task int) {
		for i := range words[task*part/8 : (task+1)*part/8] {
			words[task*part/8+i] = uint64(i)
		}
	})
	best := 0.0
	window := len(sums) / readWindows
	for i := range ceilingRuns * readWindows {
		first := i % readWindows * window
		began := time.Now()
		d.team.run(window, func(_, task int) {
			task += first
			sums[task] = gemm.Sum(words[task*part/8 : (task+1)*part/8])
		})
		best = max(best, readBytes/readWindows/time.Since(began).Seconds())
	}
	for i, s := range sums {
		if s != sums[0] {
			return 0, fmt.Errorf("cpu: part %d of the memory that was read sums to %d, the first to %d", i, s, sums[0])
		}
	}
	return best, nil
}

// copyRates measures the streams as kv/xfer uses them.
func (d *Device) copyRates() (in, out, both float64, err error) {
	dev, err := alloc(2 * copyBytes)
	if err != nil {
		return 0, 0, 0, err
	}
	defer dev.Free()
	host, err := alloc(2 * copyBytes)
	if err != nil {
		return 0, 0, 0, err
	}
	defer host.Free()
	for _, b := range []*buffer{dev, host} { // pages that nobody wrote are one page of zeros, which a cache holds
		for i := 0; i < len(b.bytes); i += 64 {
			b.bytes[i] = byte(i >> 6)
		}
	}
	rate := func(load, store bool) (float64, error) {
		best := 0.0
		for range ceilingRuns {
			r, err := d.copyOnce(dev, host, load, store)
			if err != nil {
				return 0, err
			}
			best = max(best, r)
		}
		return best, nil
	}
	if in, err = rate(true, false); err != nil {
		return
	}
	if out, err = rate(false, true); err != nil {
		return
	}
	both, err = rate(true, true)
	return
}

// copyOnce copies the first half to the device, the second half back, or both at once, and returns bytes per second
// between the first start and the last end.
func (d *Device) copyOnce(dev, host *buffer, load, store bool) (float64, error) {
	var bytes float64
	var start, end time.Duration
	var streams []device.Stream
	var events [][2]device.Event
	run := func(dst, src *buffer, off int64) error {
		s, err := d.NewStream("ceiling")
		if err != nil {
			return err
		}
		streams = append(streams, s)
		from := s.Record()
		s.Copy(dst, off, src, off, copyBytes)
		events = append(events, [2]device.Event{from, s.Record()})
		bytes += copyBytes
		return nil
	}
	if load {
		if err := run(dev, host, 0); err != nil {
			return 0, err
		}
	}
	if store {
		if err := run(host, dev, copyBytes); err != nil {
			return 0, err
		}
	}
	for i, s := range streams {
		if err := s.Close(); err != nil {
			return 0, err
		}
		if i == 0 || events[i][0].Time() < start {
			start = events[i][0].Time()
		}
		end = max(end, events[i][1].Time())
	}
	return bytes / (end - start).Seconds(), nil
}
