package model

import (
	"fmt"
	"strings"
	"sync"

	"larder/internal/device"
)

// fakeDevice keeps what is uploaded and writes down the order of a pass's calls.
type fakeDevice struct {
	device.Device // nil: any method not defined below is a bug in the test

	mu      sync.Mutex
	uploads []string // first tensor's name of each call
	refuse  string   // an upload of this tensor fails
	calls   []string
	endErr  error
	release chan struct{} // when not nil, a pass waits for it
}

type handle struct{ tensors []device.Tensor }

func (h *handle) Size() int64 {
	n := int64(0)
	for _, t := range h.tensors {
		size := int64(2)
		for _, d := range t.Shape {
			size *= int64(d)
		}
		n += size
	}
	return n
}
func (h *handle) Len() int { return h.tensors[0].Shape[0] }

type matrixHandle struct{ handle }

func (h *matrixHandle) Shape() (n, k int) {
	for _, t := range h.tensors {
		n += t.Shape[0]
	}
	return n, h.tensors[0].Shape[1]
}

type expertsHandle struct {
	handle
	count int
}

func (h *expertsHandle) Shape() (experts, hidden, intermediate int) {
	return h.count, h.tensors[0].Shape[1], h.tensors[0].Shape[0]
}

func (d *fakeDevice) take(tensors []device.Tensor) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.uploads = append(d.uploads, tensors[0].Name)
	if tensors[0].Name == d.refuse {
		return fmt.Errorf("%w: no room", device.ErrOutOfMemory)
	}
	return nil
}

func (d *fakeDevice) Matrix(parts ...device.Tensor) (device.Matrix, error) {
	return &matrixHandle{handle{parts}}, d.take(parts)
}

func (d *fakeDevice) Vector(t device.Tensor) (device.Vector, error) {
	return &handle{[]device.Tensor{t}}, d.take([]device.Tensor{t})
}

func (d *fakeDevice) Experts(gate, up, down []device.Tensor) (device.Experts, error) {
	all := append(append(append([]device.Tensor{}, gate...), up...), down...)
	return &expertsHandle{handle{all}, len(gate)}, d.take(gate)
}

func (d *fakeDevice) NewCompute(device.ComputeSpec) (device.Compute, error) {
	return &fakeCompute{d}, nil
}

type fakeCompute struct{ dev *fakeDevice }

func (c *fakeCompute) note(format string, args ...any) {
	c.dev.calls = append(c.dev.calls, fmt.Sprintf(format, args...))
}

func (c *fakeCompute) Begin(b *device.Batch) error {
	c.note("begin")
	if len(b.IDs) == 0 {
		return fmt.Errorf("an empty batch")
	}
	return nil
}
func (c *fakeCompute) Embed(m device.Matrix) { c.note("embed %s", first(m)) }
func (c *fakeCompute) Attention(l int, w *device.AttentionWeights) {
	c.note("attention %d %s", l, first(w.QKV))
}
func (c *fakeCompute) MLP(w *device.MLPWeights)   { c.note("mlp %s", first(w.Experts)) }
func (c *fakeCompute) Head(w *device.HeadWeights) { c.note("head %s", first(w.Out)) }
func (c *fakeCompute) End() device.Pass {
	c.note("end")
	return c
}

func (c *fakeCompute) Wait() ([]int32, error) {
	if c.dev.release != nil {
		<-c.dev.release
	}
	return []int32{42}, c.dev.endErr
}

// first is the short name of the first tensor of a handle.
func first(h any) string {
	var t device.Tensor
	switch h := h.(type) {
	case *matrixHandle:
		t = h.tensors[0]
	case *expertsHandle:
		t = h.tensors[0]
	}
	return strings.TrimSuffix(strings.TrimPrefix(t.Name, "model."), ".weight")
}
