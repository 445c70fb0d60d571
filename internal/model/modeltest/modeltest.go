// Package modeltest writes small random checkpoints as Hugging Face lays them out (config.json and safetensors, one
// file or shards), so that tests have a real folder to load without a download. It states the names and shapes of
// weights a second time, by itself, and so checks package model's. It computes nothing.
//
// Start at WriteTiny; MoE and Dense are configs to go with it.
package modeltest

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/safetensors"
)

// MoE is a mixture of experts with everything in it (grouped queries, a dense layer, an untied head), small enough
// for hundreds of passes a second.
func MoE() *arch.Config {
	return &arch.Config{
		Name: "test-moe", Architecture: arch.Qwen3MoE, VocabSize: 192, HiddenSize: 64, NumLayers: 3, NumHeads: 4,
		NumKVHeads: 2, HeadDim: 32, IntermediateSize: 96, NumExperts: 6, NumExpertsPerToken: 2, MoEIntermediateSize: 32,
		NormTopKProb: true, DecoderSparseStep: 1, MLPOnlyLayers: []int{1}, RMSNormEps: 1e-6, RopeTheta: 1e6,
		MaxPositions: 4096, EOSTokenIDs: []int32{3}, BOSTokenID: -1,
	}
}

// Dense is a dense model with a tied head, as small as MoE.
func Dense() *arch.Config {
	return &arch.Config{
		Name: "test-dense", Architecture: arch.Qwen3, VocabSize: 192, HiddenSize: 64, NumLayers: 2, NumHeads: 4,
		NumKVHeads: 1, HeadDim: 32, IntermediateSize: 96, RMSNormEps: 1e-6, RopeTheta: 1e6, MaxPositions: 4096,
		TieWordEmbeddings: true, EOSTokenIDs: []int32{3}, BOSTokenID: -1,
	}
}

// WriteTiny writes a checkpoint of cfg with random bf16 weights into dir: config.json and model.safetensors.
func WriteTiny(dir string, cfg *arch.Config, seed uint64) error {
	if err := WriteConfig(dir, cfg); err != nil {
		return err
	}
	return Save(filepath.Join(dir, "model.safetensors"), Tensors(cfg, seed))
}

// WriteSharded writes the same checkpoint as WriteTiny in shards files and their index.
func WriteSharded(dir string, cfg *arch.Config, seed uint64, shards int) error {
	if err := WriteConfig(dir, cfg); err != nil {
		return err
	}
	all := Tensors(cfg, seed)
	where := map[string]string{}
	for s := range shards {
		file := fmt.Sprintf("model-%05d-of-%05d.safetensors", s+1, shards)
		part := all[len(all)*s/shards : len(all)*(s+1)/shards]
		for _, t := range part {
			where[t.Name] = file
		}
		if err := Save(filepath.Join(dir, file), part); err != nil {
			return err
		}
	}
	return writeJSON(filepath.Join(dir, "model.safetensors.index.json"), map[string]any{"weight_map": where})
}

// WriteWide writes the same values as WriteTiny, stored as float32.
func WriteWide(dir string, cfg *arch.Config, seed uint64) error {
	if err := WriteConfig(dir, cfg); err != nil {
		return err
	}
	all := Tensors(cfg, seed)
	for i := range all {
		narrow := all[i].Data
		all[i].DType, all[i].Data = arch.F32, make([]byte, 0, 2*len(narrow))
		for j := 0; j < len(narrow); j += 2 { // a bf16 is the upper half of a float32
			all[i].Data = append(all[i].Data, 0, 0, narrow[j], narrow[j+1])
		}
	}
	return Save(filepath.Join(dir, "model.safetensors"), all)
}

// WriteConfig writes cfg as a config.json.
func WriteConfig(dir string, cfg *arch.Config) error {
	h := map[string]any{
		"architectures": []string{cfg.Architecture}, "_name_or_path": cfg.Name, "vocab_size": cfg.VocabSize,
		"hidden_size": cfg.HiddenSize, "num_hidden_layers": cfg.NumLayers, "num_attention_heads": cfg.NumHeads,
		"num_key_value_heads": cfg.NumKVHeads, "head_dim": cfg.HeadDim, "intermediate_size": cfg.IntermediateSize,
		"max_position_embeddings": cfg.MaxPositions, "rms_norm_eps": cfg.RMSNormEps, "rope_theta": cfg.RopeTheta,
		"tie_word_embeddings": cfg.TieWordEmbeddings, "eos_token_id": cfg.EOSTokenIDs, "hidden_act": "silu",
	}
	if cfg.BOSTokenID >= 0 {
		h["bos_token_id"] = cfg.BOSTokenID
	}
	if cfg.Architecture == arch.Qwen3MoE {
		maps.Copy(h, map[string]any{
			"num_experts": cfg.NumExperts, "num_experts_per_tok": cfg.NumExpertsPerToken,
			"moe_intermediate_size": cfg.MoEIntermediateSize, "norm_topk_prob": cfg.NormTopKProb,
			"decoder_sparse_step": cfg.DecoderSparseStep, "mlp_only_layers": cfg.MLPOnlyLayers,
		})
	}
	return writeJSON(filepath.Join(dir, "config.json"), h)
}

func writeJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// Tensors are the random weights of cfg, sorted by name. The hidden state keeps its size through the layers, and
// logits are spread.
func Tensors(cfg *arch.Config, seed uint64) []safetensors.Tensor {
	shapes := Shapes(cfg)
	var all []safetensors.Tensor
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		all = append(all, random(name, shapes[name], cfg, seed))
	}
	return all
}

// Shapes maps every weight of cfg to its shape, by the names of Hugging Face's checkpoints.
func Shapes(cfg *arch.Config) map[string][]int {
	h, dim := cfg.HiddenSize, cfg.HeadDim
	s := map[string][]int{"model.embed_tokens.weight": {cfg.VocabSize, h}, "model.norm.weight": {h}}
	if !cfg.TieWordEmbeddings {
		s["lm_head.weight"] = []int{cfg.VocabSize, h}
	}
	mlp := func(prefix string, width int) {
		s[prefix+".gate_proj.weight"] = []int{width, h}
		s[prefix+".up_proj.weight"] = []int{width, h}
		s[prefix+".down_proj.weight"] = []int{h, width}
	}
	for l := range cfg.NumLayers {
		p := fmt.Sprintf("model.layers.%d.", l)
		s[p+"input_layernorm.weight"] = []int{h}
		s[p+"post_attention_layernorm.weight"] = []int{h}
		s[p+"self_attn.q_proj.weight"] = []int{cfg.NumHeads * dim, h}
		s[p+"self_attn.k_proj.weight"] = []int{cfg.NumKVHeads * dim, h}
		s[p+"self_attn.v_proj.weight"] = []int{cfg.NumKVHeads * dim, h}
		s[p+"self_attn.o_proj.weight"] = []int{h, cfg.NumHeads * dim}
		s[p+"self_attn.q_norm.weight"] = []int{dim}
		s[p+"self_attn.k_norm.weight"] = []int{dim}
		if !cfg.IsSparse(l) {
			mlp(p+"mlp", cfg.IntermediateSize)
			continue
		}
		s[p+"mlp.gate.weight"] = []int{cfg.NumExperts, h}
		for e := range cfg.NumExperts {
			mlp(fmt.Sprintf("%smlp.experts.%d", p, e), cfg.MoEIntermediateSize)
		}
	}
	return s
}

func random(name string, shape []int, cfg *arch.Config, seed uint64) safetensors.Tensor {
	hash := fnv.New64a()
	hash.Write([]byte(name))
	gen := device.Dummy{Seed: hash.Sum64() ^ seed*0x9E3779B97F4A7C15}
	n := shape[0]
	if len(shape) == 1 {
		gen.Offset, gen.Scale = 1, 0.2
		if strings.HasSuffix(name, "q_norm.weight") || strings.HasSuffix(name, "k_norm.weight") {
			gen.Offset = 2 // attention that looks at few tokens, so that each of them matters
		}
	} else {
		n *= shape[1]
		gain := 1.0
		switch {
		case name == "model.embed_tokens.weight" && !cfg.TieWordEmbeddings:
			gain = math.Sqrt(float64(shape[1]))
		case name == "lm_head.weight":
			gain = 3
		case strings.HasSuffix(name, "mlp.gate.weight"):
			gain = 2
		}
		gen.Scale = float32(gain * math.Sqrt(3/float64(shape[1])))
	}
	values := make([]uint16, n)
	gen.Values(values, 0)
	data := make([]byte, 0, 2*n)
	for _, v := range values {
		data = binary.LittleEndian.AppendUint16(data, v)
	}
	return safetensors.Tensor{Name: name, DType: arch.BF16, Shape: shape, Data: data}
}

// Save writes tensors as one safetensors file. Of a tensor that is wrong on purpose it writes what it says.
func Save(path string, tensors []safetensors.Tensor) error {
	type description struct {
		DType   string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}
	names := map[arch.DType]string{arch.BF16: "BF16", arch.F16: "F16", arch.F32: "F32"}
	header, data := map[string]description{}, []byte{}
	for _, t := range tensors {
		shape := append([]int{}, t.Shape...)
		header[t.Name] = description{names[t.DType], shape, [2]int{len(data), len(data) + len(t.Data)}}
		data = append(data, t.Data...)
	}
	text, err := json.Marshal(header)
	if err != nil {
		return err
	}
	for len(text)%8 != 0 {
		text = append(text, ' ')
	}
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	return os.WriteFile(path, append(append(file, text...), data...), 0o644)
}
