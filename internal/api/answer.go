package api

import "strconv"

// Finish says why a sequence ended; the zero value says that it has not.
type Finish struct {
	Reason  string // stop, length or abort; "" while running
	Text    string // the stop string that ended it, or ""
	ID      int32  // the stop token that ended it, or -1; with stop and no Text
	Length  int    // with length: the limit reached
	Message string // with abort
}

// appendNative appends {"type":"stop","matched":…} and its kin, or null.
func (f *Finish) appendNative(dst []byte) []byte {
	switch f.Reason {
	case "":
		return append(dst, "null"...)
	case "length":
		dst = appendInt(dst, `{"type":"length","length":`, f.Length)
	case "abort":
		dst = AppendString(append(dst, `{"type":"abort","message":`...), f.Message)
	default:
		dst = f.appendMatched(append(dst, `{"type":"stop","matched":`...))
	}
	return append(dst, '}')
}

// appendMatched appends the stop string or token, or null.
func (f *Finish) appendMatched(dst []byte) []byte {
	switch {
	case f.Reason != "stop":
		return append(dst, "null"...)
	case f.Text != "":
		return AppendString(dst, f.Text)
	case f.ID >= 0:
		return strconv.AppendInt(dst, int64(f.ID), 10)
	}
	return append(dst, "null"...)
}

func (f *Finish) appendReason(dst []byte) []byte {
	if f.Reason == "" {
		return append(dst, "null"...)
	}
	return AppendString(dst, f.Reason)
}

// Timing is the part of meta_info that only a finished sequence has. NaN: did not happen, written as null.
type Timing struct {
	E2E        float64 // s, arrival to last token
	Queue      float64 // s, in the engine's queue until admitted
	Load       float64 // s, from admission until the loads from slower tiers landed
	TTFT       float64 // s, arrival to first token
	DecodeRate float64 // tokens/s after the first
	Received   float64 // Unix s
	Finished   float64 // Unix s
}

// Meta is meta_info of the native API.
type Meta struct {
	ID           string
	Finish       Finish
	Prompt       int
	Completion   int
	Reasoning    int
	Cached       bool // the three below are known
	Device, Host int  // cached tokens by tier
	Computed     int
	Retractions  int
	Seed         *uint64 // of a sampled sequence
	Timing       *Timing // of a finished one
}

// AppendMeta appends m as an object.
func AppendMeta(dst []byte, m *Meta) []byte {
	dst = AppendString(append(dst, `{"id":`...), m.ID)
	dst = m.Finish.appendNative(append(dst, `,"finish_reason":`...))
	dst = appendInt(dst, `,"prompt_tokens":`, m.Prompt)
	dst = appendInt(dst, `,"completion_tokens":`, m.Completion)
	dst = appendInt(dst, `,"reasoning_tokens":`, m.Reasoning)
	dst = appendInt(dst, `,"cached_tokens":`, m.Device+m.Host)
	if m.Cached {
		dst = appendInt(dst, `,"cached_tokens_details":{"device":`, m.Device)
		dst = appendInt(dst, `,"host":`, m.Host)
		dst = appendInt(dst, `},"computed_tokens":`, m.Computed)
	} else {
		dst = append(dst, `,"cached_tokens_details":null`...)
	}
	dst = append(dst, `,"weight_version":"default"`...)
	dst = appendInt(dst, `,"num_retractions":`, m.Retractions)
	if m.Seed != nil {
		dst = strconv.AppendUint(append(dst, `,"sampling_seed":`...), *m.Seed, 10)
	}
	if t := m.Timing; t != nil {
		dst = t.append(dst)
	}
	return append(dst, '}')
}

func (t *Timing) append(dst []byte) []byte {
	for _, f := range [...]struct {
		key string
		v   float64
	}{
		{`,"e2e_latency":`, t.E2E}, {`,"queue_time":`, t.Queue}, {`,"load_time":`, t.Load},
		{`,"time_to_first_token":`, t.TTFT}, {`,"decode_throughput":`, t.DecodeRate},
		{`,"request_received_ts":`, t.Received}, {`,"request_finished_ts":`, t.Finished},
	} {
		dst = AppendSeconds(append(dst, f.key...), f.v)
	}
	return dst
}

// Generated is one result object of the native API. Text and IDs are already JSON: the escaped text without quotes
// and the ids with commas, so that a cumulative stream escapes each token once.
type Generated struct {
	Text, IDs []byte
	Meta      Meta
	Index     int // in a streamed batch; -1: none
}

// AppendGenerate appends g as an object.
func AppendGenerate(dst []byte, g *Generated) []byte {
	dst = append(append(dst, `{"text":"`...), g.Text...)
	dst = append(append(dst, `","output_ids":[`...), g.IDs...)
	dst = AppendMeta(append(dst, `],"meta_info":`...), &g.Meta)
	if g.Index >= 0 {
		dst = appendInt(dst, `,"index":`, g.Index)
	}
	return append(dst, '}')
}

// Usage is OpenAI's usage object. Device and Host are an extension inside prompt_tokens_details.
type Usage struct {
	Prompt, Completion, Reasoning int
	Device, Host                  int // cached prompt tokens by tier
}

// Add sums usages; the prompt of n choices is counted once by the caller.
func (u *Usage) Add(v Usage) {
	u.Prompt += v.Prompt
	u.Completion += v.Completion
	u.Reasoning += v.Reasoning
	u.Device += v.Device
	u.Host += v.Host
}

// AppendUsage appends u as an object.
func AppendUsage(dst []byte, u *Usage) []byte {
	dst = appendInt(dst, `{"prompt_tokens":`, u.Prompt)
	dst = appendInt(dst, `,"total_tokens":`, u.Prompt+u.Completion)
	dst = appendInt(dst, `,"completion_tokens":`, u.Completion)
	dst = appendInt(dst, `,"prompt_tokens_details":{"cached_tokens":`, u.Device+u.Host)
	dst = appendInt(dst, `,"device":`, u.Device)
	dst = appendInt(dst, `,"host":`, u.Host)
	dst = appendInt(dst, `},"reasoning_tokens":`, u.Reasoning)
	dst = appendInt(dst, `,"completion_tokens_details":{"reasoning_tokens":`, u.Reasoning)
	return append(dst, '}', '}')
}

// Envelope is what all objects and chunks of one OpenAI answer have in common.
type Envelope struct {
	ID      string
	Object  string // text_completion, chat.completion or chat.completion.chunk
	Created int64  // Unix s
	Model   string
}

// AppendOpen appends the envelope up to the first choice.
func (e *Envelope) AppendOpen(dst []byte) []byte {
	dst = AppendString(append(dst, `{"id":`...), e.ID)
	dst = AppendString(append(dst, `,"object":`...), e.Object)
	dst = strconv.AppendInt(append(dst, `,"created":`...), e.Created, 10)
	dst = AppendString(append(dst, `,"model":`...), e.Model)
	return append(dst, `,"choices":[`...)
}

// AppendClose ends what AppendOpen began, with usage if there is any.
func AppendClose(dst []byte, u *Usage) []byte {
	dst = append(dst, ']')
	if u != nil {
		dst = AppendUsage(append(dst, `,"usage":`...), u)
	}
	return append(dst, '}')
}

// AppendTextChoice appends a choice of /v1/completions, whole or streamed.
func AppendTextChoice(dst []byte, index int, text []byte, f *Finish) []byte {
	dst = appendInt(dst, `{"index":`, index)
	dst = AppendString(append(dst, `,"text":`...), text)
	dst = f.appendReason(append(dst, `,"logprobs":null,"finish_reason":`...))
	dst = f.appendMatched(append(dst, `,"matched_stop":`...))
	return append(dst, '}')
}

// Message is an assistant's whole message or a part of it. nil: the key is left out of a delta and null in a message.
type Message struct {
	Role      bool // "assistant" is named
	Content   []byte
	Reasoning []byte
}

func (m *Message) append(dst []byte, whole bool) []byte {
	dst = append(dst, '{')
	if m.Role {
		dst = append(dst, `"role":"assistant",`...)
	}
	for _, f := range [...]struct {
		key string
		v   []byte
	}{{`"content":`, m.Content}, {`"reasoning_content":`, m.Reasoning}} {
		switch {
		case f.v != nil:
			dst = append(AppendString(append(dst, f.key...), f.v), ',')
		case whole:
			dst = append(append(dst, f.key...), "null,"...)
		}
	}
	if dst[len(dst)-1] == ',' {
		dst = dst[:len(dst)-1]
	}
	return append(dst, '}')
}

// AppendDelta appends a streamed choice of chat.
func AppendDelta(dst []byte, index int, m *Message, f *Finish) []byte {
	dst = m.append(append(appendInt(dst, `{"index":`, index), `,"delta":`...), false)
	return f.appendChatEnd(dst)
}

// AppendMessage appends a whole choice of chat.
func AppendMessage(dst []byte, index int, m *Message, f *Finish) []byte {
	dst = m.append(append(appendInt(dst, `{"index":`, index), `,"message":`...), true)
	return f.appendChatEnd(dst)
}

func (f *Finish) appendChatEnd(dst []byte) []byte {
	dst = f.appendReason(append(dst, `,"logprobs":null,"finish_reason":`...))
	dst = f.appendMatched(append(dst, `,"matched_stop":`...))
	return append(dst, '}')
}
