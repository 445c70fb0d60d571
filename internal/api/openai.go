package api

import (
	"encoding/json"
	"reflect"
	"strings"
)

// StreamOptions is OpenAI's stream_options with vLLM's continuous_usage_stats.
type StreamOptions struct {
	IncludeUsage    *bool `json:"include_usage"`
	ContinuousUsage *bool `json:"continuous_usage_stats"`
}

// ResponseFormat is accepted as "text" only.
type ResponseFormat struct {
	Type string `json:"type"`
}

// OpenAIOptions are the fields that completions and chat share. nil means the default.
type OpenAIOptions struct {
	Model         *string         `json:"model"`
	Stream        *bool           `json:"stream"`
	StreamOptions *StreamOptions  `json:"stream_options"`
	N             *int            `json:"n"`
	MaxTokens     *int            `json:"max_tokens"`
	MinTokens     *int            `json:"min_tokens"`
	Temperature   *float64        `json:"temperature"`
	TopP          *float64        `json:"top_p"`
	TopK          *int            `json:"top_k"`
	MinP          *float64        `json:"min_p"`
	Stop          Strings         `json:"stop"`
	StopTokenIDs  []int32         `json:"stop_token_ids"`
	IgnoreEOS     *bool           `json:"ignore_eos"`
	SkipSpecial   *bool           `json:"skip_special_tokens"`
	NoStopTrim    *bool           `json:"no_stop_trim"`
	IncludeStop   *bool           `json:"include_stop_str_in_output"` // vLLM's name of no_stop_trim
	Seed          *int64          `json:"seed"`
	RID           Strings         `json:"rid"`
	ExtraKey      *string         `json:"extra_key"`
	CacheSalt     *string         `json:"cache_salt"`
	Format        *ResponseFormat `json:"response_format"`
	Lora          Off             `json:"lora_path"`
	HiddenStates  Off             `json:"return_hidden_states"`
	Priority      Off             `json:"priority"`
	Penalties
	Constraints
}

// refusals lists what both APIs refuse.
func (o *OpenAIOptions) refusals() []refusal {
	format := o.Format != nil && o.Format.Type != "" && o.Format.Type != "text"
	own := []refusal{
		{"response_format", format}, {"lora_path", o.Lora.On},
		{"return_hidden_states", o.HiddenStates.On}, {"priority", o.Priority.On},
	}
	return append(append(own, o.Penalties.refusals()...), o.Constraints.refusals()...)
}

// CompletionRequest is the body of /v1/completions.
type CompletionRequest struct {
	OpenAIOptions
	Prompt   Prompt  `json:"prompt"`
	Echo     *bool   `json:"echo"`
	BestOf   *int    `json:"best_of"`
	Logprobs *int    `json:"logprobs"` // 0 asks for the chosen token's
	Suffix   *string `json:"suffix"`
}

// Refused is the name of a field that is set and not implemented, or "".
func (r *CompletionRequest) Refused() string {
	best := r.BestOf != nil && *r.BestOf != 1 && (r.N == nil || *r.BestOf != *r.N)
	return firstRefused(append(r.refusals(),
		refusal{"best_of", best}, refusal{"logprobs", r.Logprobs != nil}, refusal{"suffix", r.Suffix != nil && *r.Suffix != ""}))
}

// Content is a chat message's content: a string, or a list of parts, of which only text is taken.
type Content struct {
	Text    string
	Refused string // type of a part that is not text
}

// UnmarshalJSON takes null, a string or a list of parts.
func (c *Content) UnmarshalJSON(b []byte) error {
	*c = Content{}
	switch b[0] {
	case 'n':
		return nil
	case '"':
		return json.Unmarshal(b, &c.Text)
	case '[':
		var parts []struct {
			Type string `json:"type"`
			Text string `json:"text"`
		}
		if json.Unmarshal(b, &parts) != nil {
			return mistyped(b, reflect.TypeFor[Content]())
		}
		var text strings.Builder
		for _, p := range parts {
			if p.Type != "text" {
				c.Refused = p.Type
				return nil
			}
			text.WriteString(p.Text)
		}
		c.Text = text.String()
		return nil
	}
	return mistyped(b, reflect.TypeFor[Content]())
}

// ChatMessage is one turn.
type ChatMessage struct {
	Role      string  `json:"role"`
	Content   Content `json:"content"`
	Reasoning *string `json:"reasoning_content"`
	ToolCalls Off     `json:"tool_calls"`
}

// TemplateArgs are the chat template's switches; others are ignored, as a template ignores what it does not use.
type TemplateArgs struct {
	EnableThinking *bool `json:"enable_thinking"`
}

// ChatRequest is the body of /v1/chat/completions.
type ChatRequest struct {
	OpenAIOptions
	Messages          []ChatMessage `json:"messages"`
	MaxCompletion     *int          `json:"max_completion_tokens"`
	Template          *TemplateArgs `json:"chat_template_kwargs"`
	SeparateReasoning *bool         `json:"separate_reasoning"`
	Logprobs          Off           `json:"logprobs"`
	TopLogprobs       Off           `json:"top_logprobs"`
	Tools             Off           `json:"tools"`
	Functions         Off           `json:"functions"`
	Audio             Off           `json:"audio"`
	Continue          Off           `json:"continue_final_message"`
}

// Refused is the name of a field that is set and not implemented, or "".
func (r *ChatRequest) Refused() string {
	return firstRefused(append(r.refusals(),
		refusal{"logprobs", r.Logprobs.On}, refusal{"top_logprobs", r.TopLogprobs.On}, refusal{"tools", r.Tools.On},
		refusal{"functions", r.Functions.On}, refusal{"audio", r.Audio.On}, refusal{"continue_final_message", r.Continue.On}))
}

// SamplingDefaults are a model's own (its generation config); nil means the API's default.
type SamplingDefaults struct {
	Temperature, TopP, MinP *float64
	TopK                    *int
}

// TokenizeRequest is the body of /tokenize.
type TokenizeRequest struct {
	Prompt Texts `json:"prompt"`
	Text   Texts `json:"text"` // an older name
}

// Texts is Strings that remembers which of the two was given.
type Texts struct {
	Values []string
	List   bool
}

// UnmarshalJSON takes null, a string or a list of strings.
func (t *Texts) UnmarshalJSON(b []byte) error {
	t.List = b[0] == '['
	return (*Strings)(&t.Values).UnmarshalJSON(b)
}

// DetokenizeRequest is the body of /detokenize.
type DetokenizeRequest struct {
	Tokens      Prompt `json:"tokens"`
	SkipSpecial *bool  `json:"skip_special_tokens"`
}

// AbortRequest is the body of /abort_request.
type AbortRequest struct {
	RID      *string `json:"rid"`
	AbortAll *bool   `json:"abort_all"`
}
