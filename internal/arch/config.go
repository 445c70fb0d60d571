package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// The architectures that Parse accepts, by their names in config.json.
const (
	Qwen3MoE = "Qwen3MoeForCausalLM"
	Qwen3    = "Qwen3ForCausalLM"
)

// Load reads config.json of a Hugging Face checkpoint directory, and the end-of-sequence ids of generation_config.json
// where there is one. The error is one line that names the file.
func Load(dir string) (*Config, error) {
	path := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if c.Name == "" {
		c.Name = baseName(dir)
	}
	path = filepath.Join(dir, "generation_config.json")
	text, err = os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, err
	}
	if err := c.addGeneration(text); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

func baseName(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	return filepath.Base(dir)
}

// addGeneration puts the ids of generation_config.json before those of config.json: text ends at any of them.
func (c *Config) addGeneration(text []byte) error {
	var g struct {
		EOS tokenIDs `json:"eos_token_id"`
	}
	if err := unmarshal(text, &g); err != nil {
		return err
	}
	ids := slices.Clone([]int32(g.EOS))
	for _, id := range c.EOSTokenIDs {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	c.EOSTokenIDs = ids
	return c.Validate()
}

// hfConfig is config.json. A nil pointer is a field that is absent or null and takes its class's default.
type hfConfig struct {
	Architectures []string `json:"architectures"`
	ModelType     string   `json:"model_type"`
	NameOrPath    string   `json:"_name_or_path"`

	VocabSize        *int `json:"vocab_size"`
	HiddenSize       *int `json:"hidden_size"`
	NumLayers        *int `json:"num_hidden_layers"`
	NumHeads         *int `json:"num_attention_heads"`
	NumKVHeads       *int `json:"num_key_value_heads"`
	HeadDim          *int `json:"head_dim"`
	IntermediateSize *int `json:"intermediate_size"`
	MaxPositions     *int `json:"max_position_embeddings"`

	NumExperts          *int  `json:"num_experts"`
	NumLocalExperts     *int  `json:"num_local_experts"` // the name that newer versions write
	NumExpertsPerToken  *int  `json:"num_experts_per_tok"`
	MoEIntermediateSize *int  `json:"moe_intermediate_size"`
	NormTopKProb        *bool `json:"norm_topk_prob"`
	DecoderSparseStep   *int  `json:"decoder_sparse_step"`
	MLPOnlyLayers       []int `json:"mlp_only_layers"`

	RMSNormEps        *float64 `json:"rms_norm_eps"`
	TieWordEmbeddings *bool    `json:"tie_word_embeddings"`
	BOS               tokenIDs `json:"bos_token_id"`
	EOS               tokenIDs `json:"eos_token_id"`

	RopeTheta      *float64 `json:"rope_theta"`
	RopeScaling    *hfRope  `json:"rope_scaling"`
	RopeParameters *hfRope  `json:"rope_parameters"` // where newer versions keep theta and scaling

	// Fields whose other values would change the mathematics and are refused.
	HiddenAct        *string         `json:"hidden_act"`
	AttentionBias    bool            `json:"attention_bias"`
	UseSlidingWindow bool            `json:"use_sliding_window"`
	LayerTypes       []string        `json:"layer_types"`
	Quantization     json.RawMessage `json:"quantization_config"`
}

type hfRope struct {
	RopeType string   `json:"rope_type"`
	Type     string   `json:"type"` // the old name of rope_type
	Theta    *float64 `json:"rope_theta"`
	Partial  *float64 `json:"partial_rotary_factor"`
}

// tokenIDs is a token id, a list of them, or null.
type tokenIDs []int32

func (t *tokenIDs) UnmarshalJSON(text []byte) error {
	text = bytes.TrimSpace(text)
	if len(text) > 0 && text[0] == '[' {
		return json.Unmarshal(text, (*[]int32)(t))
	}
	var one *int32
	if err := json.Unmarshal(text, &one); err != nil {
		return err
	}
	*t = nil
	if one != nil {
		*t = tokenIDs{*one}
	}
	return nil
}

// unmarshal decodes JSON with errors that name the field and say where the text goes wrong.
func unmarshal(text []byte, into any) error {
	err := json.Unmarshal(text, into)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("not JSON: byte %d: %w", syntax.Offset, err)
	case errors.As(err, &kind):
		return fmt.Errorf("field %q: %s is not %s", kind.Field, kind.Value, kind.Type)
	}
	return err
}

// Parse reads the text of a config.json of Qwen3MoeForCausalLM or Qwen3ForCausalLM. A field that is absent has the
// default of Hugging Face's config class; a field that would change the mathematics in a way not supported here is
// refused by name. The Config is valid.
func Parse(text []byte) (*Config, error) {
	var h hfConfig
	if err := unmarshal(text, &h); err != nil {
		return nil, err
	}
	name, err := h.architecture()
	if err != nil {
		return nil, err
	}
	if err := h.refuse(); err != nil {
		return nil, err
	}
	c := h.config(name)
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return c, nil
}

func (h *hfConfig) architecture() (string, error) {
	for _, a := range h.Architectures {
		if a == Qwen3MoE || a == Qwen3 {
			return a, nil
		}
	}
	if len(h.Architectures) > 0 {
		return "", fmt.Errorf("architecture %q is not supported (supported: %s, %s)", h.Architectures[0], Qwen3MoE, Qwen3)
	}
	switch h.ModelType {
	case "qwen3_moe":
		return Qwen3MoE, nil
	case "qwen3":
		return Qwen3, nil
	}
	return "", fmt.Errorf("no architectures, and model_type %q is not supported (supported: %s, %s)", h.ModelType, Qwen3MoE, Qwen3)
}

// refuse reports a field that asks for mathematics that this project does not have.
func (h *hfConfig) refuse() error {
	if h.HiddenAct != nil && *h.HiddenAct != "silu" {
		return fmt.Errorf("hidden_act %q is not supported (supported: silu)", *h.HiddenAct)
	}
	if h.AttentionBias {
		return errors.New("attention_bias true is not supported")
	}
	if h.UseSlidingWindow {
		return errors.New("use_sliding_window true is not supported")
	}
	for _, t := range h.LayerTypes {
		if t != "full_attention" {
			return fmt.Errorf("layer_types %q is not supported (supported: full_attention)", t)
		}
	}
	if q := bytes.TrimSpace(h.Quantization); len(q) > 0 && !bytes.Equal(q, []byte("null")) {
		return errors.New("quantization_config is not supported: use the bf16 checkpoint")
	}
	if err := h.RopeScaling.refuse("rope_scaling"); err != nil {
		return err
	}
	return h.RopeParameters.refuse("rope_parameters")
}

func (r *hfRope) refuse(field string) error {
	if r == nil {
		return nil
	}
	for _, t := range []string{r.RopeType, r.Type} {
		if t != "" && t != "default" {
			return fmt.Errorf("%s of type %q is not supported (supported: default)", field, t)
		}
	}
	if r.Partial != nil && *r.Partial != 1 {
		return fmt.Errorf("%s: partial_rotary_factor %v is not supported (supported: 1)", field, *r.Partial)
	}
	return nil
}

// config applies the defaults of Qwen3MoeConfig and Qwen3Config.
func (h *hfConfig) config(name string) *Config {
	moe := name == Qwen3MoE
	c := &Config{
		Name:         h.NameOrPath,
		Architecture: name,
		VocabSize:    or(h.VocabSize, 151936),
		HiddenSize:   or(h.HiddenSize, pick(moe, 2048, 4096)),
		NumLayers:    or(h.NumLayers, pick(moe, 24, 32)),
		NumHeads:     or(h.NumHeads, 32),
		MaxPositions: or(h.MaxPositions, 32768),

		IntermediateSize: or(h.IntermediateSize, pick(moe, 6144, 22016)),

		RMSNormEps:        float32(or(h.RMSNormEps, 1e-6)),
		RopeTheta:         h.theta(),
		TieWordEmbeddings: or(h.TieWordEmbeddings, false),
		EOSTokenIDs:       h.EOS,
		BOSTokenID:        -1,
	}
	if len(h.BOS) > 0 {
		c.BOSTokenID = h.BOS[0]
	}
	c.NumKVHeads = or(h.NumKVHeads, pick(moe, 4, c.NumHeads))
	c.HeadDim = or(h.HeadDim, 128)
	if moe && h.HeadDim == nil && c.NumHeads > 0 {
		c.HeadDim = c.HiddenSize / c.NumHeads
	}
	if moe {
		c.NumExperts = or(h.NumExperts, or(h.NumLocalExperts, 128))
		c.NumExpertsPerToken = or(h.NumExpertsPerToken, 8)
		c.MoEIntermediateSize = or(h.MoEIntermediateSize, 768)
		c.NormTopKProb = or(h.NormTopKProb, false)
		c.DecoderSparseStep = or(h.DecoderSparseStep, 1)
		c.MLPOnlyLayers = slices.Clone(h.MLPOnlyLayers)
	}
	return c
}

// theta is RoPE's base wavelength. Newer files keep it in rope_parameters, older ones at the top.
func (h *hfConfig) theta() float64 {
	for _, r := range []*hfRope{h.RopeParameters, h.RopeScaling} {
		if r != nil && r.Theta != nil {
			return *r.Theta
		}
	}
	return or(h.RopeTheta, 10000)
}

func or[T any](p *T, fallback T) T {
	if p == nil {
		return fallback
	}
	return *p
}

func pick(moe bool, sparse, dense int) int {
	if moe {
		return sparse
	}
	return dense
}
