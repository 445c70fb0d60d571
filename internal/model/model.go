// Package model is a Qwen3 or Qwen3-MoE decoder on a device: it loads weights, from a Hugging Face checkpoint or
// made up from a seed, and runs the forward pass as the fused operations of device.Compute. It owns the names and
// shapes of weights and the order of operations; it knows no scheduling, no KV blocks' meaning and no mathematics of
// its own.
//
// Start at Load and New; Dummy and OpenCheckpoint are the sources of weights.
package model

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"larder/internal/device"
)

// Errors of Launch and Wait, which break the order of calls.
var (
	ErrBusy   = errors.New("model: as many passes are under way as may be")
	ErrIdle   = errors.New("model: no pass was launched")
	ErrClosed = errors.New("model: closed")
)

// Depth is how many passes may be under way at once: one computes, the next is prepared meanwhile.
const Depth = 2

// Model runs forward passes in the order of Launch. Its methods are for one goroutine at a time.
type Model struct {
	weights *Weights
	compute device.Compute
	jobs    chan *device.Batch
	queued  chan queued
	worker  sync.WaitGroup
	flying  int // launched and not waited for
	closed  bool
}

// queued is a pass that the device knows, or why it does not.
type queued struct {
	pass device.Pass
	err  error
}

// New prepares the forward pass of weights over the KV pool in spec. spec.Config may be nil; it is the weights'.
// Close ends what New starts.
func New(dev device.Device, weights *Weights, spec device.ComputeSpec) (*Model, error) {
	c := weights.Config
	spec.Config = c
	if l := spec.Layout; l.Layers != c.NumLayers || l.KVHeads != c.NumKVHeads || l.HeadDim != c.HeadDim {
		return nil, fmt.Errorf("KV layout of %d layers, %d heads of %d does not fit model %s: %d layers, %d heads of %d",
			l.Layers, l.KVHeads, l.HeadDim, c.Name, c.NumLayers, c.NumKVHeads, c.HeadDim)
	}
	compute, err := dev.NewCompute(spec)
	if err != nil {
		return nil, err
	}
	m := &Model{weights: weights, compute: compute, jobs: make(chan *device.Batch, Depth), queued: make(chan queued, Depth)}
	m.worker.Go(m.work)
	return m, nil
}

// work queues every pass from one OS thread, as device contexts want it. A pass that was refused is not the one before
// the next, so a batch that takes tokens from it is refused as well.
func (m *Model) work() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var refused error
	for b := range m.jobs {
		var q queued
		if refused != nil && slices.ContainsFunc(b.IDs, func(id int32) bool { return id < 0 }) {
			q.err = fmt.Errorf("model: the pass before drew no tokens: %w", refused)
		} else {
			q.pass, q.err = m.pass(b)
		}
		refused = q.err
		m.queued <- q
	}
}

// pass is the decoder.
func (m *Model) pass(b *device.Batch) (device.Pass, error) {
	if err := m.compute.Begin(b); err != nil {
		return nil, err
	}
	m.compute.Embed(m.weights.Embed)
	for l := range m.weights.Layers {
		m.compute.Attention(l, &m.weights.Layers[l].Attention)
		m.compute.MLP(&m.weights.Layers[l].MLP)
	}
	m.compute.Head(&m.weights.Head)
	return m.compute.End(), nil
}

// Launch starts a pass and returns. Up to Depth may be under way; ids may name what the one launched before draws (see
// device.Drawn). The batch and what it points to must not change until the Wait for it returns.
func (m *Model) Launch(b *device.Batch) error {
	switch {
	case m.closed:
		return ErrClosed
	case m.flying == Depth:
		return ErrBusy
	}
	m.flying++
	m.jobs <- b
	return nil
}

// Wait waits for the oldest pass under way: one token per sequence with a Draw, in order, valid until the second Launch
// after that pass's own.
func (m *Model) Wait() ([]int32, error) {
	if m.flying == 0 {
		return nil, ErrIdle
	}
	q := <-m.queued
	m.flying--
	if q.err != nil {
		return nil, q.err
	}
	return q.pass.Wait()
}

// Forward is Launch and Wait, with nothing under way before.
func (m *Model) Forward(b *device.Batch) ([]int32, error) {
	if m.flying > 0 {
		return nil, ErrBusy
	}
	if err := m.Launch(b); err != nil {
		return nil, err
	}
	return m.Wait()
}

// Logits are those of the last pass's i-th sequence with a Draw, valid until the next Launch; nil where the device
// cannot give them.
func (m *Model) Logits(i int) []float32 {
	if r, ok := m.compute.(device.LogitReader); ok {
		return r.Logits(i)
	}
	return nil
}

// Weights are those that the model runs.
func (m *Model) Weights() *Weights { return m.weights }

// Close waits for the passes under way and stops the model. It is idempotent.
func (m *Model) Close() error {
	if m.closed {
		return nil
	}
	for m.flying > 0 {
		_, _ = m.Wait() // nobody asks what came of it
	}
	m.closed = true
	close(m.jobs)
	m.worker.Wait()
	return nil
}
