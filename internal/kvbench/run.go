package kvbench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"larder/internal/device"
	"larder/internal/kv"
	"larder/internal/kv/xfer"
)

// Run measures loads alone, stores alone and both at once. On a failed check the result comes with ErrChecks; when
// ctx is cancelled, what was measured by then comes with its error.
func Run(ctx context.Context, mem device.Memory, cfg Config) (*Result, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r, err := newRig(mem, cfg)
	if err != nil {
		return nil, err
	}
	defer r.close()

	out := &Result{Config: cfg}
	total := 3 * cfg.Batches
	for i, d := range []Direction{Load, Store, Duplex} {
		progress := func(n int) {
			if cfg.Progress != nil {
				cfg.Progress(i*cfg.Batches+n, total)
			}
		}
		if err := r.phase(ctx, d, out, progress); err != nil {
			return out, err
		}
	}
	for _, c := range out.Checks {
		if !c.OK {
			return out, fmt.Errorf("%w: %s: %s", ErrChecks, c.Name, c.Detail)
		}
	}
	return out, nil
}

// rig is the pools, the mover and the block numbers of a run.
type rig struct {
	cfg   Config
	mem   device.Memory
	dev   device.Buffer
	host  device.Buffer
	bytes []byte // host, as the CPU sees it
	mover *xfer.Mover

	devBlocks, hostBlocks []kv.BlockID // in run order, or shuffled
	live                  map[uint64]*flight
	lastUser              []int // by slot: the last request that used it
	slotOf                []int // by store region: the slot that was stored there last
	nextMove              kv.MoveID
	moved                 int64 // bytes that the trace saw in this phase
	pieces, handed        int
	methods               map[string]int
}

// flight is a request that moves.
type flight struct {
	slot int
	left int // moves not reported yet
	req  *request
}

func newRig(mem device.Memory, cfg Config) (*rig, error) {
	devBytes, hostBytes := cfg.PoolBytes()
	dev, err := mem.Alloc(devBytes)
	if err != nil {
		return nil, fmt.Errorf("device pool of %d blocks: %w", cfg.DeviceBlocks(), err)
	}
	r := &rig{cfg: cfg, mem: mem, dev: dev, live: map[uint64]*flight{}, methods: map[string]int{}}
	host, err := allocHost(mem, hostBytes)
	if err != nil {
		r.close()
		return nil, fmt.Errorf("host pool of %d blocks: %w", cfg.HostBlocks(), err)
	}
	r.host = host
	mapped, ok := host.(device.Mapped)
	if !ok {
		r.close()
		return nil, fmt.Errorf("the device's host memory cannot be read by the CPU: contents could not be checked")
	}
	r.bytes = mapped.Bytes()
	unit := cfg.unit()
	move := xfer.Config{Layout: unit, Memory: mem, DevicePool: dev, HostPool: host, Trace: r.trace, Method: cfg.Method, Table: cfg.Table}
	if cfg.Scatter {
		move.MaxPieceBytes = unit.BlockBytes() // shuffled blocks may be neighbours by chance
	}
	r.mover, err = xfer.New(move)
	if err != nil {
		r.close()
		return nil, err
	}
	r.slotOf, r.lastUser = make([]int, cfg.storeRegions()), make([]int, cfg.inFlight())
	rng := rand.New(rand.NewPCG(cfg.Seed, 0))
	r.devBlocks = numbers(cfg.DeviceBlocks(), cfg.Scatter, rng)
	r.hostBlocks = numbers(cfg.HostBlocks(), cfg.Scatter, rng)
	return r, nil
}

// allocHost takes memory by many cores where the device can.
func allocHost(mem device.Memory, bytes int64) (device.Buffer, error) {
	if p, ok := mem.(device.Pinner); ok {
		return p.AllocHostSlowly(bytes, func(int64) {})
	}
	return mem.AllocHost(bytes)
}

// numbers are n block numbers in order, or shuffled.
func numbers(n int, scatter bool, rng *rand.Rand) []kv.BlockID {
	ids := make([]kv.BlockID, n)
	for i := range ids {
		ids[i] = kv.BlockID(i)
	}
	if scatter {
		rng.Shuffle(n, func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	}
	return ids
}

func (r *rig) close() {
	if r.mover != nil {
		r.mover.Close()
	}
	for _, b := range []device.Buffer{r.dev, r.host} {
		if b != nil {
			b.Free()
		}
	}
}

// phase runs one warm-up batch and the measured ones, then checks counts and contents.
func (r *rig) phase(ctx context.Context, d Direction, out *Result, progress func(int)) error {
	if err := r.fill(d); err != nil {
		return err
	}
	if _, err := r.batch(ctx, d); err != nil {
		return err
	}
	r.moved, r.pieces, r.handed, r.methods = 0, 0, 0, map[string]int{}
	var batches []batch
	for i := range r.cfg.Batches {
		b, err := r.batch(ctx, d)
		if err != nil {
			return err
		}
		batches = append(batches, b)
		progress(i + 1)
	}
	out.Phases = append(out.Phases, Phase{Direction: d, Metrics: metrics(d, batches, r.ceiling(d)), Bytes: r.moved, Pieces: r.pieces,
		HandOvers: r.handed, Methods: r.methods})
	checks, err := r.checks(d, batches)
	out.Checks = append(out.Checks, checks...)
	return err
}

func (r *rig) ceiling(d Direction) float64 {
	name := map[Direction]string{Load: device.CeilingHostToDev, Store: device.CeilingDevToHost, Duplex: device.CeilingCopyDuplex}[d]
	for _, c := range r.cfg.Ceilings {
		if c.Name == name {
			return c.Value
		}
	}
	return 0
}

// batch moves all requests once, InFlight at a time.
func (r *rig) batch(ctx context.Context, d Direction) (batch, error) {
	b := batch{requests: make([]request, r.cfg.Requests)}
	began := time.Now()
	next := 0
	for ; next < r.cfg.inFlight(); next++ {
		r.submit(d, &b, next, next)
	}
	for len(r.live) > 0 {
		if err := ctx.Err(); err != nil {
			return b, err
		}
		freed, err := r.collect(ctx)
		if err != nil {
			return b, err
		}
		for _, slot := range freed {
			if next < r.cfg.Requests {
				r.submit(d, &b, next, slot)
				next++
			}
		}
	}
	b.wall = time.Since(began)
	return b, nil
}

// submit hands a request's moves to the mover.
func (r *rig) submit(d Direction, b *batch, index, slot int) {
	f := &flight{slot: slot, req: &b.requests[index]}
	load, store := r.regions(index, slot)
	r.slotOf[store], r.lastUser[slot] = slot, index
	moves := make([]kv.Move, 0, 2*r.cfg.units())
	for i := range r.cfg.units() {
		if d&Load != 0 {
			moves = append(moves, r.move(kv.Host, r.hostBlock(load, Load, i), kv.Device, r.devBlock(slot, Load, i)))
		}
		if d&Store != 0 {
			moves = append(moves, r.move(kv.Device, r.devBlock(slot, Store, i), kv.Host, r.hostBlock(store, Store, i)))
		}
	}
	f.left = len(moves)
	tag := uint64(index) + 1
	r.live[tag] = f
	began := time.Now()
	r.mover.SubmitTagged(tag, moves)
	f.req.submit = time.Since(began)
}

func (r *rig) move(from kv.Tier, src kv.BlockID, to kv.Tier, dst kv.BlockID) kv.Move {
	r.nextMove++
	return kv.Move{ID: r.nextMove, From: from, Src: src, To: to, Dst: dst}
}

// regions are the host blocks that a request loads from and stores to.
func (r *rig) regions(index, slot int) (load, store int) {
	if r.cfg.regions() < r.cfg.Requests {
		return index % r.cfg.regions(), slot
	}
	return index, index
}

// hostBlock and devBlock number the units of a region (or slot): those for loads, then those for stores.
func (r *rig) hostBlock(region int, d Direction, i int) kv.BlockID {
	n := r.cfg.BlocksPerRequest()
	if d == Store {
		region += r.cfg.regions()
	}
	return r.numbered(r.hostBlocks, region*n+i%n, i/n)
}

func (r *rig) devBlock(slot int, d Direction, i int) kv.BlockID {
	n := r.cfg.BlocksPerRequest()
	if d == Store {
		slot += r.cfg.inFlight()
	}
	return r.numbered(r.devBlocks, slot*n+i%n, i/n)
}

// numbered is the number of a block, or of its layer in a pool of [layer][block].
func (r *rig) numbered(blocks []kv.BlockID, at, layer int) kv.BlockID {
	return blocks[at] + kv.BlockID(layer*len(blocks))
}

// collect waits until at least one request is done and returns the slots that are free again.
func (r *rig) collect(ctx context.Context) ([]int, error) {
	for {
		var failed error
		r.mover.Poll(func(m kv.Move, err error) {
			if err != nil {
				failed = fmt.Errorf("move %d from %v to %v: %w", m.ID, m.From, m.To, err)
			}
		})
		if failed != nil {
			return nil, failed
		}
		var freed []int
		for tag, f := range r.live {
			if f.left <= 0 {
				freed = append(freed, f.slot)
				delete(r.live, tag)
			}
		}
		if len(freed) > 0 {
			return freed, nil
		}
		select {
		case <-r.mover.Notify():
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// trace is called by the mover for every finished copy.
func (r *rig) trace(c xfer.CopyRecord) {
	r.moved += c.Bytes
	r.pieces += c.Pieces
	r.handed++
	r.methods[c.Method.String()]++
	f := r.live[c.Tag]
	if f == nil {
		return
	}
	f.left -= c.Blocks
	if c.To == kv.Device {
		f.req.load.add(&c)
	} else {
		f.req.store.add(&c)
	}
}
