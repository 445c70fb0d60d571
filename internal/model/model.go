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
	"sync"

	"larder/internal/device"
)

// Errors of Launch and Wait, which break the order of calls.
var (
	ErrBusy   = errors.New("model: a pass is running")
	ErrIdle   = errors.New("model: no pass was launched")
	ErrClosed = errors.New("model: closed")
)

// Model runs forward passes, one at a time. Its methods are for one goroutine at a time.
type Model struct {
	weights *Weights
	compute device.Compute
	jobs    chan *device.Batch
	results chan result
	worker  sync.WaitGroup
	running bool
	closed  bool
}

type result struct {
	tokens []int32
	err    error
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
	m := &Model{weights: weights, compute: compute, jobs: make(chan *device.Batch), results: make(chan result)}
	m.worker.Go(m.work)
	return m, nil
}

// work runs every pass on one OS thread, as device contexts want it.
func (m *Model) work() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for b := range m.jobs {
		tokens, err := m.pass(b)
		m.results <- result{tokens, err}
	}
}

// pass is the decoder.
func (m *Model) pass(b *device.Batch) ([]int32, error) {
	if err := m.compute.Begin(b); err != nil {
		return nil, err
	}
	m.compute.Embed(m.weights.Embed)
	for l := range m.weights.Layers {
		m.compute.Attention(l, &m.weights.Layers[l].Attention)
		m.compute.MLP(&m.weights.Layers[l].MLP)
	}
	m.compute.Head(&m.weights.Head)
	return m.compute.End()
}

// Launch starts a pass and returns. The batch and what it points to must not change until Wait returns.
func (m *Model) Launch(b *device.Batch) error {
	switch {
	case m.closed:
		return ErrClosed
	case m.running:
		return ErrBusy
	}
	m.running = true
	m.jobs <- b
	return nil
}

// Wait waits for the launched pass: one token per sequence with a Draw, in order, valid until the next Launch.
func (m *Model) Wait() ([]int32, error) {
	if !m.running {
		return nil, ErrIdle
	}
	r := <-m.results
	m.running = false
	return r.tokens, r.err
}

// Forward is Launch and Wait.
func (m *Model) Forward(b *device.Batch) ([]int32, error) {
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

// Close waits for a running pass and stops the model. It is idempotent.
func (m *Model) Close() error {
	if m.closed {
		return nil
	}
	if m.running {
		<-m.results
		m.running = false
	}
	m.closed = true
	close(m.jobs)
	m.worker.Wait()
	return nil
}
