// Package arch describes a model's architecture: the hyper-parameters that a Hugging Face config.json states and
// the few built-in ones. It is vocabulary: it reads no weights and knows no device.
//
// Start at Config; Parse and Load read config.json, Builtin names the built-in models.
package arch

// DType is the element type of a tensor.
type DType uint8

// The element types that checkpoints and KV pools use.
const (
	BF16 DType = iota + 1
	F16
	F32
)

// Size is the number of bytes of one element.
func (d DType) Size() int {
	switch d {
	case BF16, F16:
		return 2
	case F32:
		return 4
	}
	return 0
}

// String is the name that Hugging Face configs use.
func (d DType) String() string {
	switch d {
	case BF16:
		return "bfloat16"
	case F16:
		return "float16"
	case F32:
		return "float32"
	}
	return "unknown"
}

// Config holds the hyper-parameters of a Qwen3 or Qwen3-MoE decoder, as in Hugging Face's Qwen3ForCausalLM and
// Qwen3MoeForCausalLM. All sizes are elements; a Config that passed Validate is consistent.
type Config struct {
	Name         string // the name a user gave or config.json's _name_or_path
	Architecture string // "Qwen3MoeForCausalLM" or "Qwen3ForCausalLM"
	VocabSize    int
	HiddenSize   int
	NumLayers    int
	NumHeads     int // query heads
	NumKVHeads   int
	HeadDim      int

	IntermediateSize int // width of a dense MLP

	NumExperts          int // 0: every layer is dense
	NumExpertsPerToken  int
	MoEIntermediateSize int   // width of one expert
	NormTopKProb        bool  // renormalise the chosen experts' probabilities
	DecoderSparseStep   int   // layer l is sparse when (l+1) % step == 0
	MLPOnlyLayers       []int // layers that are dense all the same

	RMSNormEps        float32
	RopeTheta         float64
	MaxPositions      int // context length in tokens
	TieWordEmbeddings bool
	EOSTokenIDs       []int32
	BOSTokenID        int32 // -1: none
}

// QKVRows is the number of output rows of the fused Q, K and V projection.
func (c *Config) QKVRows() int { return (c.NumHeads + 2*c.NumKVHeads) * c.HeadDim }

// IsSparse says whether layer l is a mixture of experts.
func (c *Config) IsSparse(l int) bool {
	if c.NumExperts == 0 {
		return false
	}
	for _, d := range c.MLPOnlyLayers {
		if d == l {
			return false
		}
	}
	return (l+1)%c.DecoderSparseStep == 0
}
