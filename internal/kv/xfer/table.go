package xfer

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"larder/internal/device"
	"larder/internal/kv"
)

// Table says which method is fastest on a machine, by the size of pieces and their number. Where the methods cross
// differs between GPUs, drivers and links, so it is measured.
type Table struct {
	Schema   string `json:"schema"`
	Identity string `json:"identity"` // of the machine
	Cells    []Cell `json:"cells"`
}

// Cell is one measurement: a number of pieces of a size, scattered on both sides.
type Cell struct {
	To     string `json:"to"` // the tier
	Bytes  int64  `json:"piece_bytes"`
	Pieces int    `json:"pieces"`
	Best   Method `json:"best"`
	Tried  []Try  `json:"tried"`
}

// Try is one method in a cell.
type Try struct {
	Method Method  `json:"method"`
	CopyUS float64 `json:"copy_us"` // a batch of a row, on the device's clock; the least of a few
	HostUS float64 `json:"host_us"` // to hand a batch over; the least of a few
}

// microseconds is what a batch takes of a queue that never empties: handing over the next one runs beside the copy.
func (t *Try) microseconds() float64 { return max(t.CopyUS, t.HostUS) }

const tableSchema = "larder.copies/1"

// What is measured: 32 MiB at most a batch, and a few batches in a row, as the mover hands them over: alone, a batch
// waits for its own handing over.
const (
	tableBytes = 32 << 20
	tableDepth = 4
	tableTurns = 3
)

// margin is how much faster a method must be than one that stands before it. A copy each takes no list. A kernel takes
// multiprocessors from the passes that run beside it, and two of them, one each way, are slower than the copy engines
// where each alone is as fast (an H200: 55 of 94 GiB/s against 75, in pieces of 128 KiB).
var margin = map[Method]float64{Runs: 1, Batch: 0.97, Kernel: 0.7}

// choose is the best method for pieces of a size: that of the next lower size that was measured, and of the next lower
// number there. A nil table knows one.
func (t *Table) choose(to kv.Tier, bytes int64, pieces int) Method {
	if t == nil {
		return Runs
	}
	var at *Cell
	for i := range t.Cells { // by size and then number, upwards
		c := &t.Cells[i]
		if c.To != to.String() {
			continue
		}
		if at == nil || c.Bytes > at.Bytes && c.Bytes <= bytes || c.Bytes == at.Bytes && c.Pieces <= pieces {
			at = c
		}
	}
	if at == nil {
		return Runs
	}
	return at.Best
}

// Measure makes the table of a machine, which should be idle. It takes half a second on a GPU, and none where
// there is one method.
func Measure(mem device.Memory, identity string) (_ *Table, err error) {
	t := &Table{Schema: tableSchema, Identity: identity}
	if len(mem.CopyMethods()) < 2 {
		return t, nil
	}
	near, err := mem.Alloc(2 * tableBytes)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, near.Free()) }()
	far, err := mem.AllocHost(2 * tableBytes)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, far.Free()) }()
	s, err := mem.NewStream("kv copy methods")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for _, way := range []struct {
		to       kv.Tier
		dst, src device.Buffer
	}{{kv.Device, near, far}, {kv.Host, far, near}} {
		for size := int64(4 << 10); size <= 4<<20; size *= 2 {
			for pieces := 4; pieces <= 256 && int64(pieces)*size <= tableBytes; pieces *= 8 {
				c := Cell{To: way.to.String(), Bytes: size, Pieces: pieces}
				if err := c.measure(mem, s, way.dst, way.src); err != nil {
					return nil, err
				}
				t.Cells = append(t.Cells, c)
			}
		}
	}
	return t, nil
}

// measure tries the methods of a device and notes the best.
func (c *Cell) measure(mem device.Memory, s device.Stream, dst, src device.Buffer) error {
	list := scattered(c.Bytes, c.Pieces)
	least := 0.0
	for _, m := range []Method{Runs, Batch, Kernel} {
		if !m.Available(mem) {
			continue
		}
		t := Try{Method: m}
		for turn := range tableTurns {
			from := s.Record()
			began := time.Now()
			for range tableDepth {
				s.CopyMany(dst, src, list, m.copies())
			}
			host := time.Since(began)
			to := s.Record()
			if err := to.Wait(); err != nil {
				return fmt.Errorf("kv/xfer: measuring copies by %v: %w", m, err)
			}
			copied, handed := us(to.Time()-from.Time())/tableDepth, us(host)/tableDepth
			if turn == 0 {
				t.CopyUS, t.HostUS = copied, handed
			}
			t.CopyUS, t.HostUS = min(t.CopyUS, copied), min(t.HostUS, handed)
		}
		if len(c.Tried) == 0 || t.microseconds() < margin[m]*least {
			c.Best, least = m, t.microseconds()
		}
		c.Tried = append(c.Tried, t)
	}
	return nil
}

func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// scattered are n pieces in random places of twice their bytes.
func scattered(bytes int64, n int) []device.Span {
	rng := rand.New(rand.NewPCG(uint64(bytes), uint64(n)))
	dst, src := rng.Perm(2*n), rng.Perm(2*n)
	out := make([]device.Span, n)
	for i := range out {
		out[i] = device.Span{Dst: int64(dst[i]) * bytes, Src: int64(src[i]) * bytes, N: bytes}
	}
	return out
}

// Cached is the table that dir keeps for a machine, or a fresh one, which is then kept. fresh says which. An empty dir
// keeps none; a file that cannot be read, or is another machine's, is as none.
func Cached(dir, identity string, mem device.Memory) (t *Table, fresh bool, err error) {
	sum := sha256.Sum256([]byte(identity))
	path := filepath.Join(dir, fmt.Sprintf("copies-%x.json", sum[:8]))
	if dir != "" {
		t = &Table{}
		if b, err := os.ReadFile(path); err == nil && json.Unmarshal(b, t) == nil && t.Schema == tableSchema && t.Identity == identity && t.usable(mem) {
			return t, false, nil
		}
	}
	if t, err = Measure(mem, identity); err != nil || dir == "" || len(t.Cells) == 0 {
		return t, true, err
	}
	return t, true, t.save(dir, path)
}

// usable says that the device has all that the table names.
func (t *Table) usable(mem device.Memory) bool {
	for _, c := range t.Cells {
		if c.Best == Auto || !c.Best.Available(mem) {
			return false
		}
	}
	return len(t.Cells) > 0
}

func (t *Table) save(dir, path string) error {
	b, err := json.MarshalIndent(t, "", " ")
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "copies-*.tmp")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
