package arch

import (
	"fmt"
	"math"
	"slices"
)

// Bounds of single fields. They are far above any model and far below what would overflow a product of three.
const (
	maxWidth  = 1 << 20 // hidden, intermediate and head sizes, heads, experts
	maxLayers = 1 << 12
	maxVocab  = 1 << 24
	maxTokens = 1 << 30
)

// Validate reports the first field that is wrong, by its name in config.json.
func (c *Config) Validate() error {
	if c.Architecture != Qwen3MoE && c.Architecture != Qwen3 {
		return fmt.Errorf("architecture %q is not supported (supported: %s, %s)", c.Architecture, Qwen3MoE, Qwen3)
	}
	for _, f := range []struct {
		name     string
		value    int
		min, max int
	}{
		{"vocab_size", c.VocabSize, 1, maxVocab},
		{"hidden_size", c.HiddenSize, 1, maxWidth},
		{"num_hidden_layers", c.NumLayers, 1, maxLayers},
		{"num_attention_heads", c.NumHeads, 1, maxWidth},
		{"num_key_value_heads", c.NumKVHeads, 1, maxWidth},
		{"head_dim", c.HeadDim, 2, maxWidth},
		{"max_position_embeddings", c.MaxPositions, 1, maxTokens},
		{"num_experts", c.NumExperts, 0, maxWidth},
	} {
		if f.value < f.min || f.value > f.max {
			return fmt.Errorf("%s %d is out of range (%d to %d)", f.name, f.value, f.min, f.max)
		}
	}
	if c.NumHeads%c.NumKVHeads != 0 {
		return fmt.Errorf("num_attention_heads %d is not a multiple of num_key_value_heads %d", c.NumHeads, c.NumKVHeads)
	}
	if c.HeadDim%2 != 0 {
		return fmt.Errorf("head_dim %d is odd: rotary embedding needs pairs", c.HeadDim)
	}
	if err := c.validateMLP(); err != nil {
		return err
	}
	return c.validateNumbers()
}

func (c *Config) validateMLP() error {
	if c.Architecture == Qwen3 && c.NumExperts != 0 {
		return fmt.Errorf("num_experts %d: %s is dense", c.NumExperts, Qwen3)
	}
	if c.NumExperts > 0 {
		switch {
		case c.DecoderSparseStep < 1:
			return fmt.Errorf("decoder_sparse_step %d is out of range (at least 1)", c.DecoderSparseStep)
		case c.NumExpertsPerToken < 1 || c.NumExpertsPerToken > c.NumExperts:
			return fmt.Errorf("num_experts_per_tok %d is out of range (1 to num_experts %d)", c.NumExpertsPerToken, c.NumExperts)
		case c.MoEIntermediateSize < 1 || c.MoEIntermediateSize > maxWidth:
			return fmt.Errorf("moe_intermediate_size %d is out of range (1 to %d)", c.MoEIntermediateSize, maxWidth)
		}
		if i := slices.IndexFunc(c.MLPOnlyLayers, func(l int) bool { return l < 0 }); i >= 0 {
			return fmt.Errorf("mlp_only_layers names layer %d", c.MLPOnlyLayers[i])
		}
	}
	if c.hasDense() && (c.IntermediateSize < 1 || c.IntermediateSize > maxWidth) {
		return fmt.Errorf("intermediate_size %d is out of range (1 to %d)", c.IntermediateSize, maxWidth)
	}
	return nil
}

func (c *Config) hasDense() bool {
	for l := range c.NumLayers {
		if !c.IsSparse(l) {
			return true
		}
	}
	return false
}

// validateNumbers checks what is not a size. The comparisons are written so that a NaN fails them.
func (c *Config) validateNumbers() error {
	if !(c.RMSNormEps > 0 && c.RMSNormEps < 1) {
		return fmt.Errorf("rms_norm_eps %v is out of range (above 0, below 1)", c.RMSNormEps)
	}
	if !(c.RopeTheta > 0 && c.RopeTheta <= math.MaxFloat32) {
		return fmt.Errorf("rope_theta %v is not a positive number", c.RopeTheta)
	}
	for _, id := range c.EOSTokenIDs {
		if id < 0 || int(id) >= c.VocabSize {
			return fmt.Errorf("eos_token_id %d is not in the vocabulary of %d", id, c.VocabSize)
		}
	}
	if c.BOSTokenID < -1 || int(c.BOSTokenID) >= c.VocabSize {
		return fmt.Errorf("bos_token_id %d is not in the vocabulary of %d", c.BOSTokenID, c.VocabSize)
	}
	return nil
}

// WithLayers is a copy of the model that keeps its first n layers.
func (c *Config) WithLayers(n int) (*Config, error) {
	if n < 1 || n > c.NumLayers {
		return nil, fmt.Errorf("%d layers: the model has %d, so 1 to %d can be kept", n, c.NumLayers, c.NumLayers)
	}
	cut := c.Clone()
	cut.NumLayers = n
	cut.MLPOnlyLayers = slices.DeleteFunc(cut.MLPOnlyLayers, func(l int) bool { return l >= n })
	return cut, nil
}

// Clone is a deep copy.
func (c *Config) Clone() *Config {
	d := *c
	d.MLPOnlyLayers = slices.Clone(c.MLPOnlyLayers)
	d.EOSTokenIDs = slices.Clone(c.EOSTokenIDs)
	return &d
}
