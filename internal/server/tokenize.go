package server

import (
	"net/http"
	"strings"

	"larder/internal/api"
)

// Tokenizer turns text into ids and back. All methods may be called at once.
type Tokenizer interface {
	// Encode appends the ids of text to dst. Special tokens written out in text count as such.
	Encode(text string, dst []int32) []int32
	// NewStream starts the decoding of one answer; skipSpecial leaves special tokens out.
	NewStream(skipSpecial bool) Detokenizer
	// EncodeChat renders messages with the model's chat template, ready for an answer, and encodes the result.
	EncodeChat(messages []Message, thinking bool) ([]int32, error)
}

// Message is one turn of a chat. Role is system, user, assistant or tool.
type Message struct{ Role, Content string }

// Detokenizer turns the tokens of one answer into text, holding back incomplete characters.
type Detokenizer interface {
	// Push is the text that id makes certain.
	Push(id int32) string
	// Flush is what was held back.
	Flush() string
}

// chatPrompt is a chat as token ids.
func (b *Backend) chatPrompt(req *api.ChatRequest) ([]int32, error) {
	if len(req.Messages) == 0 {
		return nil, badParam("messages", "messages must hold at least one message.")
	}
	turns := make([]Message, len(req.Messages))
	for i := range req.Messages {
		m := &req.Messages[i]
		if m.Content.Refused != "" {
			return nil, badParam("messages", "messages[%d]: content of type %q is not supported; only text is.", i, m.Content.Refused)
		}
		if m.ToolCalls.On {
			return nil, badParam("messages", "messages[%d]: tool_calls are not supported.", i)
		}
		role, known := roles(m.Role)
		if !known {
			return nil, badParam("messages", "messages[%d]: the role must be system, developer, user, assistant or tool, got %q.", i, m.Role)
		}
		turns[i] = Message{Role: role, Content: m.Content.Text}
	}
	if b.Tokenizer == nil {
		_, err := b.encode("", "messages")
		return nil, err
	}
	thinking := true
	if req.Template != nil {
		thinking = value(req.Template.EnableThinking, true)
	}
	ids, err := b.Tokenizer.EncodeChat(turns, thinking)
	if err != nil {
		return nil, badParam("messages", "the chat template refused the messages: %s", err)
	}
	return ids, nil
}

// roles maps a request's role to the template's.
func roles(role string) (string, bool) {
	switch role {
	case "developer":
		return "system", true
	case "system", "user", "assistant", "tool":
		return role, true
	}
	return "", false
}

// tokenize serves /tokenize: the ids of one or more texts.
func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) error {
	b, err := s.ready()
	if err != nil {
		return err
	}
	var req *api.TokenizeRequest
	err = s.withBody(w, r, func(body []byte) (err error) {
		req, err = api.Decode[api.TokenizeRequest](body)
		return err
	})
	if err != nil {
		return err
	}
	texts, param := req.Prompt, "prompt"
	if texts.Values == nil {
		texts, param = req.Text, "text"
	}
	if texts.Values == nil {
		return badParam("prompt", "prompt is missing.")
	}
	all := make([][]int32, len(texts.Values))
	counts := make([]int, len(all))
	for i, text := range texts.Values {
		ids, err := b.encode(text, param)
		if err != nil {
			return err
		}
		all[i], counts[i] = append([]int32{}, ids...), len(ids)
	}
	answer := map[string]any{"tokens": all, "count": counts, "max_model_len": b.Model.ContextLength}
	if !texts.List {
		answer["tokens"], answer["count"] = all[0], counts[0]
	}
	s.writeJSON(w, http.StatusOK, api.AppendValue(nil, answer))
	return nil
}

// detokenize serves /detokenize: the text of one or more lists of ids.
func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) error {
	b, err := s.ready()
	if err != nil {
		return err
	}
	var req *api.DetokenizeRequest
	err = s.withBody(w, r, func(body []byte) (err error) {
		req, err = api.Decode[api.DetokenizeRequest](body)
		return err
	})
	if err != nil {
		return err
	}
	if req.Tokens.IDs == nil {
		return badParam("tokens", "tokens must be a list of token ids or a list of such lists.")
	}
	if b.Tokenizer == nil {
		_, err := b.encode("", "tokens")
		return err
	}
	texts := make([]string, len(req.Tokens.IDs))
	for i, ids := range req.Tokens.IDs {
		for k, id := range ids {
			if id < 0 || int(id) >= b.Model.VocabSize {
				return badParam("tokens", "token %d is %d, which is outside the vocabulary of %d tokens.", k, id, b.Model.VocabSize)
			}
		}
		texts[i] = strings.ToValidUTF8(b.decode(ids, value(req.SkipSpecial, true)), "\ufffd")
	}
	answer := map[string]any{"text": texts}
	if !req.Tokens.List {
		answer["text"] = texts[0]
	}
	s.writeJSON(w, http.StatusOK, api.AppendValue(nil, answer))
	return nil
}
