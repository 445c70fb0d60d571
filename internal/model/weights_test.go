package model

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/model/modeltest"
	"larder/internal/safetensors"
)

// everyConfig is the built-in models, cut to three layers, and the test models.
func everyConfig(t *testing.T) []*arch.Config {
	all := []*arch.Config{modeltest.MoE(), modeltest.Dense()}
	for _, name := range arch.BuiltinNames() {
		c, _ := arch.Builtin(name)
		c, err := c.WithLayers(min(3, c.NumLayers))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	return all
}

// The plan has every tensor of the checkpoint once, in its shape, and as many bytes as the config says.
func TestPlan(t *testing.T) {
	for _, c := range everyConfig(t) {
		want := modeltest.Shapes(c)
		got, bytes := map[string][]int{}, int64(0)
		for _, u := range plan(&Weights{Config: c}) {
			bytes += u.bytes()
			for _, g := range u.groups {
				for _, p := range g {
					if got[p.name] != nil {
						t.Errorf("%s: %s twice", c.Name, p.name)
					}
					got[p.name] = p.shape
				}
			}
		}
		for name, shape := range want {
			if !slices.Equal(got[name], shape) {
				t.Errorf("%s: %s has shape %v, want %v", c.Name, name, got[name], shape)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: %d tensors, want %d", c.Name, len(got), len(want))
		}
		if bytes != c.WeightBytes() {
			t.Errorf("%s: %d bytes planned, the config says %d", c.Name, bytes, c.WeightBytes())
		}
	}
}

func TestLoadDummy(t *testing.T) {
	for _, c := range everyConfig(t) {
		dev := &fakeDevice{}
		var last, total int64
		w, err := Load(t.Context(), dev, c, Dummy(c, 1), func(done, all int64) {
			if done <= last {
				t.Errorf("%s: progress went from %d to %d", c.Name, last, done)
			}
			last, total = done, all
		})
		if err != nil {
			t.Fatal(err)
		}
		if last != total || total != c.WeightBytes() || w.Bytes() != total {
			t.Errorf("%s: done %d of %d, %d on the device, the config says %d", c.Name, last, total, w.Bytes(), c.WeightBytes())
		}
		if tied := w.Head.Out == w.Embed; tied != c.TieWordEmbeddings {
			t.Errorf("%s: the head is the embedding: %v", c.Name, tied)
		}
		for l, layer := range w.Layers {
			if n, k := layer.Attention.QKV.Shape(); n != c.QKVRows() || k != c.HiddenSize {
				t.Errorf("%s: layer %d: QKV is %d x %d", c.Name, l, n, k)
			}
			if sparse := layer.MLP.Router != nil; sparse != c.IsSparse(l) {
				t.Errorf("%s: layer %d has a router: %v", c.Name, l, sparse)
			}
		}
	}
}

// What a checkpoint lacks is one line with file and tensor, before anything is uploaded.
func TestLoadRefuses(t *testing.T) {
	c := modeltest.MoE()
	const victim = "model.layers.2.mlp.experts.5.down_proj.weight"
	for _, tt := range []struct {
		what   string
		damage func(all []safetensors.Tensor, i int) []safetensors.Tensor
		want   string
	}{
		{"missing", func(all []safetensors.Tensor, i int) []safetensors.Tensor { return slices.Delete(all, i, i+1) },
			"model.safetensors: tensor " + victim + ": no such tensor"},
		{"transposed", func(all []safetensors.Tensor, i int) []safetensors.Tensor {
			all[i].Shape = []int{32, 64}
			return all
		}, "model.safetensors: tensor " + victim + ": shape [32 64], but config.json asks for [64 32]"},
		{"flat", func(all []safetensors.Tensor, i int) []safetensors.Tensor {
			all[i].Shape = []int{2048}
			return all
		}, "shape [2048], but config.json asks for [64 32]"},
		{"short", func(all []safetensors.Tensor, i int) []safetensors.Tensor {
			all[i].Data = all[i].Data[2:]
			return all
		}, "model.safetensors: tensor " + victim + ": shape [64 32] of BF16 needs 4096 bytes, data_offsets give 4094"},
	} {
		dir := t.TempDir()
		all := modeltest.Tensors(c, 1)
		i := slices.IndexFunc(all, func(t safetensors.Tensor) bool { return t.Name == victim })
		if err := modeltest.Save(filepath.Join(dir, "model.safetensors"), tt.damage(all, i)); err != nil {
			t.Fatal(err)
		}
		dev := &fakeDevice{}
		err := loadDir(t, dev, c, dir)
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line with %q", tt.what, err, tt.want)
		}
		if len(dev.uploads) > 0 {
			t.Errorf("%s: %d uploads before the error", tt.what, len(dev.uploads))
		}
	}
}

func TestLoadTruncatedShard(t *testing.T) {
	c, dir := modeltest.MoE(), t.TempDir()
	if err := modeltest.WriteSharded(dir, c, 1, 3); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "model-00002-of-00003.safetensors")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, info.Size()-1); err != nil {
		t.Fatal(err)
	}
	dev := &fakeDevice{}
	err = loadDir(t, dev, c, dir)
	if err == nil || !strings.HasPrefix(err.Error(), path+": tensor model.layers.") || !strings.Contains(err.Error(), "truncated") {
		t.Errorf("%v, want one line naming %s and its last tensor", err, path)
	}
	if len(dev.uploads) > 0 {
		t.Errorf("%d uploads before the error", len(dev.uploads))
	}
}

func loadDir(t *testing.T, dev device.Weights, c *arch.Config, dir string) error {
	t.Helper()
	src, err := OpenCheckpoint(dir)
	if err != nil {
		return err
	}
	defer src.Close()
	_, err = Load(t.Context(), dev, c, src, nil)
	return err
}

func TestLoadStops(t *testing.T) {
	c := modeltest.MoE()
	dev := &fakeDevice{refuse: "model.layers.0.self_attn.q_proj.weight"}
	_, err := Load(t.Context(), dev, c, Dummy(c, 1), nil)
	if !errors.Is(err, device.ErrOutOfMemory) || !strings.Contains(err.Error(), "tensor model.layers.0.self_attn.q_proj.weight") {
		t.Errorf("a device that is full: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = Load(ctx, &fakeDevice{}, c, Dummy(c, 1), func(int64, int64) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled load: %v", err)
	}
	c.HeadDim = 31
	if _, err := Load(t.Context(), &fakeDevice{}, c, Dummy(c, 1), nil); err == nil || !strings.Contains(err.Error(), "head_dim 31") {
		t.Errorf("a bad config: %v", err)
	}
}

// Dummy tensors depend on seed and name, and on nothing else.
func TestDummyTensors(t *testing.T) {
	c := modeltest.MoE()
	a, b, other := Dummy(c, 7), Dummy(c, 7), Dummy(c, 8)
	seeds := map[uint64]string{}
	for name, shape := range modeltest.Shapes(c) {
		x, err := a.Tensor(name, shape)
		if err != nil {
			t.Fatal(err)
		}
		y, _ := b.Tensor(name, shape)
		z, _ := other.Tensor(name, shape)
		if x.Dummy != y.Dummy || x.Dummy.Seed == z.Dummy.Seed {
			t.Errorf("%s: seeds %x, %x again, %x with another seed", name, x.Dummy.Seed, y.Dummy.Seed, z.Dummy.Seed)
		}
		if twin := seeds[x.Dummy.Seed]; twin != "" {
			t.Errorf("%s and %s have the same values", name, twin)
		}
		seeds[x.Dummy.Seed] = name
		if x.Data != nil || x.Dummy.Scale <= 0 {
			t.Errorf("%s: %+v", name, x)
		}
	}
	if _, err := a.Tensor("model.layers.0.surprise.weight", []int{2, 2}); err == nil || !strings.Contains(err.Error(), "surprise") {
		t.Errorf("an unknown weight: %v", err)
	}
}

// Weights are the same on every machine and in every version: a change here changes every dummy model's text.
func TestDummyValuesStay(t *testing.T) {
	x, err := Dummy(modeltest.MoE(), 7).Tensor("lm_head.weight", []int{192, 64})
	if err != nil {
		t.Fatal(err)
	}
	got := make([]uint16, 8)
	x.Dummy.Values(got, 1000)
	want := []uint16{0xbf0f, 0xbe9d, 0xbd9f, 0x3df5, 0x3f19, 0x3da0, 0x3eb0, 0x3eba}
	if !slices.Equal(got, want) {
		t.Errorf("elements 1000 to 1007: %#x, want %#x", got, want)
	}
}
