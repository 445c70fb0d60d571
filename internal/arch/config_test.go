package arch

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// published is the text of Qwen3-30B-A3B's config.json.
const published = `{
  "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
  "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 40960,
  "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
  "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
  "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-06,
  "rope_scaling": null, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 151936}`

func TestPublishedConfigIsTheBuiltin(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "config.json", published)
	write(t, dir, "generation_config.json", `{"eos_token_id": [151645, 151643], "temperature": 0.6}`)
	got, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != filepath.Base(dir) {
		t.Errorf("name %q, want the folder's %q", got.Name, filepath.Base(dir))
	}
	want, ok := Builtin("qwen3-30b-a3b")
	if !ok {
		t.Fatal("no such builtin")
	}
	got.Name, got.MLPOnlyLayers = want.Name, want.MLPOnlyLayers
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestDefaultsOfTheClasses(t *testing.T) {
	moe, err := Parse([]byte(`{"architectures": ["Qwen3MoeForCausalLM"]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		Architecture: Qwen3MoE, VocabSize: 151936, HiddenSize: 2048, NumLayers: 24, NumHeads: 32, NumKVHeads: 4,
		HeadDim: 64, IntermediateSize: 6144, NumExperts: 128, NumExpertsPerToken: 8, MoEIntermediateSize: 768,
		DecoderSparseStep: 1, RMSNormEps: 1e-6, RopeTheta: 10000, MaxPositions: 32768, BOSTokenID: -1,
	}
	if diff := cmp.Diff(want, moe); diff != "" {
		t.Error(diff)
	}
	dense, err := Parse([]byte(`{"model_type": "qwen3", "num_key_value_heads": null, "bos_token_id": null, "eos_token_id": null}`))
	if err != nil {
		t.Fatal(err)
	}
	want = &Config{
		Architecture: Qwen3, VocabSize: 151936, HiddenSize: 4096, NumLayers: 32, NumHeads: 32, NumKVHeads: 32,
		HeadDim: 128, IntermediateSize: 22016, RMSNormEps: 1e-6, RopeTheta: 10000, MaxPositions: 32768, BOSTokenID: -1,
	}
	if diff := cmp.Diff(want, dense); diff != "" {
		t.Error(diff)
	}
}

func TestNewerFieldNames(t *testing.T) {
	c, err := Parse([]byte(`{"model_type": "qwen3_moe", "num_local_experts": 16, "mlp_only_layers": [0, 3],
		"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "layer_types": ["full_attention"]}`))
	if err != nil {
		t.Fatal(err)
	}
	if c.NumExperts != 16 || c.RopeTheta != 5e5 || !slices.Equal(c.MLPOnlyLayers, []int{0, 3}) {
		t.Errorf("experts %d, theta %v, dense layers %v", c.NumExperts, c.RopeTheta, c.MLPOnlyLayers)
	}
	c, err = Parse([]byte(`{"model_type": "qwen3", "rope_theta": 7, "rope_scaling": {"type": "default"}}`))
	if err != nil || c.RopeTheta != 7 {
		t.Errorf("theta of an old file: %+v, %v", c, err)
	}
}

func TestRefusals(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{``, "not JSON"},
		{`{"architectures": ["Qwen3MoeForCausalLM"`, "not JSON"},
		{`{"architectures": ["LlamaForCausalLM"]}`, `"LlamaForCausalLM" is not supported`},
		{`{}`, "no architectures"},
		{`{"model_type": "qwen3", "hidden_size": "big"}`, `field "hidden_size": string is not int`},
		{`{"model_type": "qwen3", "hidden_size": 1.5}`, `field "hidden_size"`},
		{`{"model_type": "qwen3", "hidden_size": 0}`, "hidden_size 0 is out of range"},
		{`{"model_type": "qwen3", "hidden_size": -1}`, "hidden_size -1"},
		{`{"model_type": "qwen3", "num_hidden_layers": 0}`, "num_hidden_layers 0"},
		{`{"model_type": "qwen3", "vocab_size": 99999999999}`, "vocab_size 99999999999"},
		{`{"model_type": "qwen3", "num_attention_heads": 3, "num_key_value_heads": 2}`, "num_attention_heads 3 is not a multiple"},
		{`{"model_type": "qwen3_moe", "num_attention_heads": 0}`, "num_attention_heads 0"},
		{`{"model_type": "qwen3", "num_key_value_heads": 0}`, "num_key_value_heads 0"},
		{`{"model_type": "qwen3", "head_dim": 63}`, "head_dim 63 is odd"},
		{`{"model_type": "qwen3", "intermediate_size": 0}`, "intermediate_size 0"},
		{`{"model_type": "qwen3_moe", "num_experts_per_tok": 129}`, "num_experts_per_tok 129"},
		{`{"model_type": "qwen3_moe", "decoder_sparse_step": 0}`, "decoder_sparse_step 0"},
		{`{"model_type": "qwen3_moe", "moe_intermediate_size": 0}`, "moe_intermediate_size 0"},
		{`{"model_type": "qwen3_moe", "mlp_only_layers": [-1]}`, "mlp_only_layers names layer -1"},
		{`{"model_type": "qwen3_moe", "mlp_only_layers": [1], "intermediate_size": 0}`, "intermediate_size 0"},
		{`{"model_type": "qwen3", "rms_norm_eps": 0}`, "rms_norm_eps 0"},
		{`{"model_type": "qwen3", "rope_theta": -1}`, "rope_theta -1"},
		{`{"model_type": "qwen3", "eos_token_id": 151936}`, "eos_token_id 151936"},
		{`{"model_type": "qwen3", "eos_token_id": [1, -2]}`, "eos_token_id -2"},
		{`{"model_type": "qwen3", "eos_token_id": 4294967296}`, `field "eos_token_id": number 4294967296`},
		{`{"model_type": "qwen3", "bos_token_id": 151936}`, "bos_token_id 151936"},
		{`{"model_type": "qwen3", "hidden_act": "gelu"}`, `hidden_act "gelu"`},
		{`{"model_type": "qwen3", "attention_bias": true}`, "attention_bias"},
		{`{"model_type": "qwen3", "use_sliding_window": true}`, "use_sliding_window"},
		{`{"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]}`, `layer_types "sliding_attention"`},
		{`{"model_type": "qwen3", "quantization_config": {"quant_method": "fp8"}}`, "quantization_config"},
		{`{"model_type": "qwen3", "rope_scaling": {"type": "yarn", "factor": 4}}`, `rope_scaling of type "yarn"`},
		{`{"model_type": "qwen3", "rope_scaling": {"rope_type": "linear"}}`, `rope_scaling of type "linear"`},
		{`{"model_type": "qwen3", "rope_parameters": {"rope_type": "llama3"}}`, `rope_parameters of type "llama3"`},
		{`{"model_type": "qwen3", "rope_parameters": {"partial_rotary_factor": 0.5}}`, "partial_rotary_factor 0.5"},
	} {
		_, err := Parse([]byte(tt.text))
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line with %q", tt.text, err, tt.want)
		}
	}
}

func TestLoadNamesTheFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "config.json")) {
		t.Errorf("no config.json: %v", err)
	}
	write(t, dir, "config.json", published)
	write(t, dir, "generation_config.json", `{"eos_token_id": -3}`)
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "generation_config.json: eos_token_id -3") {
		t.Errorf("bad generation_config.json: %v", err)
	}
	write(t, dir, "generation_config.json", `{"eos_token_id": 7}`)
	if c, err := Load(dir); err != nil || !slices.Equal(c.EOSTokenIDs, []int32{7, 151645}) {
		t.Errorf("ids of both files: %+v, %v", c, err)
	}
}

func TestBuiltins(t *testing.T) {
	for _, name := range BuiltinNames() {
		c, ok := Builtin(name)
		if !ok || c.Name != name {
			t.Fatalf("%s: not a builtin", name)
		}
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		c.EOSTokenIDs[0] = 0
		if again, _ := Builtin(name); again.EOSTokenIDs[0] == 0 {
			t.Errorf("%s: callers share memory", name)
		}
	}
	if _, ok := Builtin("gpt-2"); ok {
		t.Error("gpt-2 is a builtin")
	}
}

func TestWithLayers(t *testing.T) {
	c, _ := Builtin("qwen3-30b-a3b")
	c.MLPOnlyLayers = []int{0, 5}
	cut, err := c.WithLayers(3)
	if err != nil {
		t.Fatal(err)
	}
	if cut.NumLayers != 3 || !slices.Equal(cut.MLPOnlyLayers, []int{0}) {
		t.Errorf("%d layers, dense %v", cut.NumLayers, cut.MLPOnlyLayers)
	}
	if c.NumLayers != 48 || !slices.Equal(c.MLPOnlyLayers, []int{0, 5}) {
		t.Errorf("the original changed: %d layers, dense %v", c.NumLayers, c.MLPOnlyLayers)
	}
	for _, n := range []int{0, -1, 49} {
		if _, err := c.WithLayers(n); err == nil || !strings.Contains(err.Error(), "1 to 48") {
			t.Errorf("%d layers: %v", n, err)
		}
	}
}

func TestIsSparse(t *testing.T) {
	c := &Config{NumExperts: 4, DecoderSparseStep: 2, MLPOnlyLayers: []int{3}}
	for l, want := range []bool{false, true, false, false, false, true} {
		if c.IsSparse(l) != want {
			t.Errorf("layer %d: sparse %v, want %v", l, !want, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(published))
	f.Add([]byte(`{"model_type":"qwen3","rope_parameters":{"rope_theta":1e6}}`))
	f.Add([]byte(`{"architectures":["Qwen3MoeForCausalLM"],"eos_token_id":[1,2],"head_dim":0}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Parse(text)
		if err != nil {
			return
		}
		if err := c.Validate(); err != nil {
			t.Errorf("parsed but invalid: %v", err)
		}
		if c.WeightBytes() <= 0 || !(c.PrefillFLOPs(1, 0) > 0) || !(c.DecodeBytes(1, 1) > 0) {
			t.Errorf("sizes of %+v overflow", c)
		}
	})
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
