package arch

import "math"

// The counts below are the numerator of every "share of limit": what the mathematics needs at least, whatever a
// device does. A FLOP count is twice the multiply-adds; bytes are bf16. Every prompt token goes through every layer.

const bf16 = 2 // bytes

// WeightBytes is the size of all weights in bf16, the embedding counted once when it is also the head.
func (c *Config) WeightBytes() int64 {
	n := int64(c.HiddenSize) + int64(c.VocabSize)*int64(c.HiddenSize)
	if !c.TieWordEmbeddings {
		n += int64(c.VocabSize) * int64(c.HiddenSize)
	}
	for l := range c.NumLayers {
		n += c.attentionWeights() + c.normWeights()
		if c.IsSparse(l) {
			n += c.routerWeights() + int64(c.NumExperts)*c.expertWeights()
		} else {
			n += c.denseWeights()
		}
	}
	return n * bf16
}

func (c *Config) attentionWeights() int64 {
	return int64(c.HiddenSize) * int64(c.QKVRows()+c.NumHeads*c.HeadDim)
}
func (c *Config) normWeights() int64   { return 2*int64(c.HiddenSize) + 2*int64(c.HeadDim) }
func (c *Config) routerWeights() int64 { return int64(c.NumExperts) * int64(c.HiddenSize) }
func (c *Config) expertWeights() int64 { return 3 * int64(c.HiddenSize) * int64(c.MoEIntermediateSize) }
func (c *Config) denseWeights() int64  { return 3 * int64(c.HiddenSize) * int64(c.IntermediateSize) }
func (c *Config) headWeights() int64   { return int64(c.HiddenSize) * int64(c.VocabSize) }

// PrefillFLOPs is the work of one sequence's newTokens after context tokens whose K and V are there: the matrix
// products of all layers, attention with the causal mask (a query sees the context, itself and the new tokens before
// it), and the head for the last row.
func (c *Config) PrefillFLOPs(newTokens, context int) float64 {
	n, p := float64(newTokens), float64(context)
	visible := n*p + n*(n+1)/2 // pairs of query and key
	flops := c.HeadFLOPs()
	for l := range c.NumLayers {
		flops += n*c.layerFLOPs(l) + visible*4*float64(c.NumHeads)*float64(c.HeadDim)
	}
	return flops
}

// layerFLOPs is the work of layer l's matrix products for one token.
func (c *Config) layerFLOPs(l int) float64 {
	w := c.attentionWeights()
	if c.IsSparse(l) {
		w += c.routerWeights() + int64(c.NumExpertsPerToken)*c.expertWeights()
	} else {
		w += c.denseWeights()
	}
	return 2 * float64(w)
}

// HeadFLOPs is the work of the logits of one row.
func (c *Config) HeadFLOPs() float64 { return 2 * float64(c.headWeights()) }

// DecodeBytes is what a step that makes one token for each of batch sequences must read at least, when each attends
// to context tokens: all weights but the experts, the experts that batch rows choose, and the sequences' KV. Of the
// embedding only the head's use counts. Routing is taken as uniform, so E(1 - (1-k/E)^batch) experts are expected;
// real routing is skewed and reads fewer.
func (c *Config) DecodeBytes(batch, context int) float64 {
	w := float64(c.headWeights() + int64(c.HiddenSize))
	kv := 0.0
	for l := range c.NumLayers {
		w += float64(c.attentionWeights() + c.normWeights())
		if c.IsSparse(l) {
			w += float64(c.routerWeights()) + c.expectedExperts(batch)*float64(c.expertWeights())
		} else {
			w += float64(c.denseWeights())
		}
		kv += float64(batch) * float64(context) * 2 * float64(c.NumKVHeads) * float64(c.HeadDim)
	}
	return bf16 * (w + kv)
}

// expectedExperts is how many distinct experts batch rows choose when each chooses k of E at random.
func (c *Config) expectedExperts(batch int) float64 {
	e, k := float64(c.NumExperts), float64(c.NumExpertsPerToken)
	return e * (1 - math.Pow(1-k/e, float64(batch)))
}
