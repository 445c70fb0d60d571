package model

import (
	"fmt"

	"larder/internal/arch"
	"larder/internal/device"
)

// part is one tensor that a model needs, under its name in Hugging Face checkpoints.
type part struct {
	name  string
	shape []int
}

func (p part) elements() int64 {
	n := int64(1)
	for _, d := range p.shape {
		n *= int64(d)
	}
	return n
}

// unit is what a device uploads in one call: one group of parts for a matrix or a vector, three (gate, up, down) for
// experts. put hands it over and keeps the handle.
type unit struct {
	groups [][]part
	put    func(dev device.Weights, groups [][]device.Tensor) error
}

func (u *unit) bytes() int64 {
	n := int64(0)
	for _, g := range u.groups {
		for _, p := range g {
			n += p.elements() * int64(arch.BF16.Size())
		}
	}
	return n
}

// plan lists everything that the weights of w.Config are made of, in the order of the forward pass.
func plan(w *Weights) []unit {
	c := w.Config
	units := []unit{matrix(&w.Embed, part{"model.embed_tokens.weight", []int{c.VocabSize, c.HiddenSize}})}
	w.Layers = make([]Layer, c.NumLayers)
	for l := range w.Layers {
		units = append(units, planLayer(c, l, &w.Layers[l])...)
	}
	units = append(units, vector(&w.Head.Norm, part{"model.norm.weight", []int{c.HiddenSize}}))
	if !c.TieWordEmbeddings {
		units = append(units, matrix(&w.Head.Out, part{"lm_head.weight", []int{c.VocabSize, c.HiddenSize}}))
	}
	return units
}

func planLayer(c *arch.Config, l int, layer *Layer) []unit {
	h, dim := c.HiddenSize, c.HeadDim
	name := func(rest string) string { return fmt.Sprintf("model.layers.%d.%s.weight", l, rest) }
	a, m := &layer.Attention, &layer.MLP
	units := []unit{
		vector(&a.Norm, part{name("input_layernorm"), []int{h}}),
		matrix(&a.QKV,
			part{name("self_attn.q_proj"), []int{c.NumHeads * dim, h}},
			part{name("self_attn.k_proj"), []int{c.NumKVHeads * dim, h}},
			part{name("self_attn.v_proj"), []int{c.NumKVHeads * dim, h}}),
		vector(&a.QNorm, part{name("self_attn.q_norm"), []int{dim}}),
		vector(&a.KNorm, part{name("self_attn.k_norm"), []int{dim}}),
		matrix(&a.O, part{name("self_attn.o_proj"), []int{h, c.NumHeads * dim}}),
		vector(&m.Norm, part{name("post_attention_layernorm"), []int{h}}),
	}
	if !c.IsSparse(l) {
		return append(units, experts(&m.Experts, []string{name("mlp.%s")}, h, c.IntermediateSize))
	}
	names := make([]string, c.NumExperts)
	for e := range names {
		names[e] = name(fmt.Sprintf("mlp.experts.%d.%%s", e))
	}
	return append(units,
		matrix(&m.Router, part{name("mlp.gate"), []int{c.NumExperts, h}}),
		experts(&m.Experts, names, h, c.MoEIntermediateSize))
}

func matrix(to *device.Matrix, parts ...part) unit {
	return unit{[][]part{parts}, func(dev device.Weights, t [][]device.Tensor) (err error) {
		*to, err = dev.Matrix(t[0]...)
		return err
	}}
}

func vector(to *device.Vector, p part) unit {
	return unit{[][]part{{p}}, func(dev device.Weights, t [][]device.Tensor) (err error) {
		*to, err = dev.Vector(t[0][0])
		return err
	}}
}

// experts takes a name with one verb per expert.
func experts(to *device.Experts, names []string, hidden, intermediate int) unit {
	groups := make([][]part, 3)
	for _, n := range names {
		groups[0] = append(groups[0], part{fmt.Sprintf(n, "gate_proj"), []int{intermediate, hidden}})
		groups[1] = append(groups[1], part{fmt.Sprintf(n, "up_proj"), []int{intermediate, hidden}})
		groups[2] = append(groups[2], part{fmt.Sprintf(n, "down_proj"), []int{hidden, intermediate}})
	}
	return unit{groups, func(dev device.Weights, t [][]device.Tensor) (err error) {
		*to, err = dev.Experts(t[0], t[1], t[2])
		return err
	}}
}
