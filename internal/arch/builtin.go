package arch

// BuiltinNames lists the models that need no config.json, largest first.
func BuiltinNames() []string { return []string{"qwen3-30b-a3b", "qwen3-0.6b", "tiny"} }

// Builtin is the architecture of a built-in model: the published config.json of Qwen3-30B-A3B and Qwen3-0.6B, and a
// small mixture of experts with their vocabulary, for tests and for a first try.
func Builtin(name string) (*Config, bool) {
	c := qwen3(name)
	switch name {
	case "qwen3-30b-a3b":
		c.HiddenSize, c.NumLayers, c.NumHeads, c.NumKVHeads, c.HeadDim = 2048, 48, 32, 4, 128
		c.IntermediateSize = 6144
		c.experts(128, 8, 768)
	case "qwen3-0.6b":
		c.HiddenSize, c.NumLayers, c.NumHeads, c.NumKVHeads, c.HeadDim = 1024, 28, 16, 8, 128
		c.IntermediateSize = 3072
		c.TieWordEmbeddings = true
	case "tiny":
		c.HiddenSize, c.NumLayers, c.NumHeads, c.NumKVHeads, c.HeadDim = 256, 2, 4, 2, 64
		c.IntermediateSize = 512
		c.experts(8, 2, 128)
		c.TieWordEmbeddings = true
	default:
		return nil, false
	}
	return c, true
}

// qwen3 is what all models of the family share. Text ends at <|im_end|> or <|endoftext|>.
func qwen3(name string) *Config {
	return &Config{
		Name:         name,
		Architecture: Qwen3,
		VocabSize:    151936,
		RMSNormEps:   1e-6,
		RopeTheta:    1e6,
		MaxPositions: 40960,
		EOSTokenIDs:  []int32{151645, 151643},
		BOSTokenID:   151643,
	}
}

func (c *Config) experts(n, perToken, intermediate int) {
	c.Architecture = Qwen3MoE
	c.NumExperts, c.NumExpertsPerToken, c.MoEIntermediateSize = n, perToken, intermediate
	c.NormTopKProb, c.DecoderSparseStep = true, 1
}
