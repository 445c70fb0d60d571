package model

import (
	"errors"
	"slices"
	"testing"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/kv"
	"larder/internal/model/modeltest"
)

func newFake(t *testing.T, dev *fakeDevice) *Model {
	t.Helper()
	c := modeltest.MoE()
	w, err := Load(t.Context(), dev, c, Dummy(c, 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(dev, w, device.ComputeSpec{Layout: kv.LayoutOf(c, 16, arch.BF16)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func TestForwardOrder(t *testing.T) {
	dev := &fakeDevice{}
	m := newFake(t, dev)
	got, err := m.Forward(&device.Batch{IDs: []int32{1}})
	if err != nil || !slices.Equal(got, []int32{42}) {
		t.Fatalf("%v, %v", got, err)
	}
	want := []string{
		"begin", "embed embed_tokens",
		"attention 0 layers.0.self_attn.q_proj", "mlp layers.0.mlp.experts.0.gate_proj",
		"attention 1 layers.1.self_attn.q_proj", "mlp layers.1.mlp.gate_proj",
		"attention 2 layers.2.self_attn.q_proj", "mlp layers.2.mlp.experts.0.gate_proj",
		"head lm_head", "end",
	}
	if !slices.Equal(dev.calls, want) {
		t.Errorf("calls %q, want %q", dev.calls, want)
	}
	if m.Logits(0) != nil {
		t.Error("logits from a device that has none")
	}
}

func TestBadBatchStopsAtBegin(t *testing.T) {
	dev := &fakeDevice{}
	m := newFake(t, dev)
	if _, err := m.Forward(&device.Batch{}); err == nil {
		t.Fatal("an empty batch was accepted")
	}
	if !slices.Equal(dev.calls, []string{"begin"}) {
		t.Errorf("calls after a refused batch: %q", dev.calls)
	}
	if _, err := m.Forward(&device.Batch{IDs: []int32{1}}); err != nil {
		t.Errorf("the next batch: %v", err)
	}
}

func TestLaunchAndWait(t *testing.T) {
	dev := &fakeDevice{release: make(chan struct{})}
	m := newFake(t, dev)
	b := &device.Batch{IDs: []int32{1}}
	if _, err := m.Wait(); !errors.Is(err, ErrIdle) {
		t.Errorf("Wait before Launch: %v", err)
	}
	if err := m.Launch(b); err != nil {
		t.Fatal(err)
	}
	if err := m.Launch(b); err != nil {
		t.Errorf("the next pass while one runs: %v", err)
	}
	if err := m.Launch(b); !errors.Is(err, ErrBusy) {
		t.Errorf("a third pass: %v", err)
	}
	if _, err := m.Forward(b); !errors.Is(err, ErrBusy) {
		t.Errorf("Forward while a pass runs: %v", err)
	}
	for range Depth {
		go func() { dev.release <- struct{}{} }() // only now may a pass end: Launch did not wait for it
		if got, err := m.Wait(); err != nil || !slices.Equal(got, []int32{42}) {
			t.Errorf("%v, %v", got, err)
		}
	}
	dev.endErr = device.ErrLost
	if err := m.Launch(b); err != nil {
		t.Fatal(err)
	}
	close(dev.release)
	if _, err := m.Wait(); !errors.Is(err, device.ErrLost) {
		t.Errorf("a lost device: %v", err)
	}
}

// TestDrawnFromARefusedPass: tokens of a pass that never ran are not taken from the one before it.
func TestDrawnFromARefusedPass(t *testing.T) {
	m := newFake(t, &fakeDevice{})
	for _, b := range []*device.Batch{{}, {IDs: []int32{device.Drawn(0)}}} {
		if err := m.Launch(b); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if _, err := m.Wait(); err == nil {
			t.Error("no error")
		}
	}
	if _, err := m.Forward(&device.Batch{IDs: []int32{1}}); err != nil {
		t.Errorf("the pass after: %v", err)
	}
}

func TestClose(t *testing.T) {
	dev := &fakeDevice{}
	m := newFake(t, dev)
	if err := m.Launch(&device.Batch{IDs: []int32{1}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Contains(dev.calls, "end") {
		t.Error("Close left a pass unfinished")
	}
	if err := m.Launch(&device.Batch{IDs: []int32{1}}); !errors.Is(err, ErrClosed) {
		t.Errorf("Launch after Close: %v", err)
	}
}

func TestNewRefusesAForeignLayout(t *testing.T) {
	c := modeltest.MoE()
	w := &Weights{Config: c}
	layout := kv.LayoutOf(c, 16, arch.BF16)
	layout.KVHeads++
	if _, err := New(&fakeDevice{}, w, device.ComputeSpec{Layout: layout}); err == nil {
		t.Error("a pool of another model was accepted")
	}
}
