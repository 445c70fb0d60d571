package api

import (
	"encoding/json"
	"reflect"
)

// Strings is a string or a list of strings.
type Strings []string

// UnmarshalJSON takes null, a string or a list of strings.
func (s *Strings) UnmarshalJSON(b []byte) error {
	*s = nil
	switch b[0] {
	case 'n':
		return nil
	case '"':
		*s = Strings{""}
		return json.Unmarshal(b, &(*s)[0])
	case '[':
		if json.Unmarshal(b, (*[]string)(s)) == nil {
			return nil
		}
	}
	return mistyped(b, reflect.TypeFor[Strings]())
}

// Off is a field that is known and not implemented: it remembers whether anything but a default came.
type Off struct{ On bool }

// UnmarshalJSON takes null, false, 0, an empty string, list or object, and lists of null, for the default.
func (o *Off) UnmarshalJSON(b []byte) error {
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	o.On = !isDefault(v)
	return nil
}

func isDefault(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case bool:
		return !v
	case float64:
		return v == 0
	case string:
		return v == ""
	case map[string]any:
		return len(v) == 0
	case []any:
		for _, e := range v {
			if e != nil {
				return false
			}
		}
		return true
	}
	return false
}

// refusal names an Off field.
type refusal struct {
	name string
	off  bool
}

func firstRefused(list []refusal) string {
	for _, r := range list {
		if r.off {
			return r.name
		}
	}
	return ""
}

// Penalties are accepted at their neutral values only.
type Penalties struct {
	Frequency  *float64 `json:"frequency_penalty"`
	Presence   *float64 `json:"presence_penalty"`
	Repetition *float64 `json:"repetition_penalty"`
}

func (p *Penalties) refusals() []refusal {
	set := func(v *float64, neutral float64) bool { return v != nil && *v != neutral }
	return []refusal{
		{"frequency_penalty", set(p.Frequency, 0)},
		{"presence_penalty", set(p.Presence, 0)},
		{"repetition_penalty", set(p.Repetition, 1)},
	}
}

// Constraints restrict the output's grammar; none is implemented.
type Constraints struct {
	JSONSchema    Off `json:"json_schema"`
	Regex         Off `json:"regex"`
	EBNF          Off `json:"ebnf"`
	StructuralTag Off `json:"structural_tag"`
	LogitBias     Off `json:"logit_bias"`
	StopRegex     Off `json:"stop_regex"`
	CustomParams  Off `json:"custom_params"`
}

func (c *Constraints) refusals() []refusal {
	return []refusal{
		{"json_schema", c.JSONSchema.On}, {"regex", c.Regex.On}, {"ebnf", c.EBNF.On},
		{"structural_tag", c.StructuralTag.On}, {"logit_bias", c.LogitBias.On},
		{"stop_regex", c.StopRegex.On}, {"custom_params", c.CustomParams.On},
	}
}

// SamplingParams is the native API's sampling_params. nil means the default.
type SamplingParams struct {
	MaxNewTokens  *int     `json:"max_new_tokens"`
	MinNewTokens  *int     `json:"min_new_tokens"`
	Temperature   *float64 `json:"temperature"`
	TopP          *float64 `json:"top_p"`
	TopK          *int     `json:"top_k"`
	MinP          *float64 `json:"min_p"`
	N             *int     `json:"n"`
	Stop          Strings  `json:"stop"`
	StopTokenIDs  []int32  `json:"stop_token_ids"`
	IgnoreEOS     *bool    `json:"ignore_eos"`
	SkipSpecial   *bool    `json:"skip_special_tokens"`
	NoStopTrim    *bool    `json:"no_stop_trim"`
	Seed          *int64   `json:"sampling_seed"`
	StreamEvery   *int     `json:"stream_interval"`
	SpacesBetween *bool    `json:"spaces_between_special_tokens"` // byte-level BPE has no such spaces to add
	Penalties
	Constraints
}

// Refused is the name of a parameter that is set and not implemented, or "".
func (p *SamplingParams) Refused() string {
	return firstRefused(append(p.Penalties.refusals(), p.Constraints.refusals()...))
}

// SamplingList is one object for all prompts or a list with one for each.
type SamplingList struct {
	All  []SamplingParams
	List bool
}

// UnmarshalJSON takes null, an object or a list of objects.
func (s *SamplingList) UnmarshalJSON(b []byte) error {
	*s = SamplingList{}
	switch b[0] {
	case 'n':
		return nil
	case '{':
		s.All = make([]SamplingParams, 1)
		return json.Unmarshal(b, &s.All[0])
	case '[':
		s.List = true
		return json.Unmarshal(b, &s.All)
	}
	return mistyped(b, reflect.TypeFor[SamplingList]())
}

// GenerateRequest is the body of /generate.
type GenerateRequest struct {
	Text      Prompt       `json:"text"`
	InputIDs  Prompt       `json:"input_ids"`
	Sampling  SamplingList `json:"sampling_params"`
	RID       Strings      `json:"rid"`
	Stream    *bool        `json:"stream"`
	ExtraKey  *string      `json:"extra_key"`
	CacheSalt *string      `json:"cache_salt"`

	ReturnLogprob   Off `json:"return_logprob"`
	TopLogprobs     Off `json:"top_logprobs_num"`
	TokenIDsLogprob Off `json:"token_ids_logprob"`
	InputEmbeds     Off `json:"input_embeds"`
	Image           Off `json:"image_data"`
	Video           Off `json:"video_data"`
	Audio           Off `json:"audio_data"`
	Lora            Off `json:"lora_path"`
	Session         Off `json:"session_params"`
	Processor       Off `json:"custom_logit_processor"`
	HiddenStates    Off `json:"return_hidden_states"`
	RoutedExperts   Off `json:"return_routed_experts"`
	PromptIDs       Off `json:"return_prompt_token_ids"`
	Priority        Off `json:"priority"`
}

// Refused is the name of a field that is set and not implemented, or "".
func (r *GenerateRequest) Refused() string {
	return firstRefused([]refusal{
		{"return_logprob", r.ReturnLogprob.On}, {"top_logprobs_num", r.TopLogprobs.On},
		{"token_ids_logprob", r.TokenIDsLogprob.On}, {"input_embeds", r.InputEmbeds.On},
		{"image_data", r.Image.On}, {"video_data", r.Video.On}, {"audio_data", r.Audio.On},
		{"lora_path", r.Lora.On}, {"session_params", r.Session.On}, {"custom_logit_processor", r.Processor.On},
		{"return_hidden_states", r.HiddenStates.On}, {"return_routed_experts", r.RoutedExperts.On},
		{"return_prompt_token_ids", r.PromptIDs.On}, {"priority", r.Priority.On},
	})
}
