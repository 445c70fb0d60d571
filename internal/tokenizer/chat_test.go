package tokenizer

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// chatCase is one line of what scripts/make_chat_cases.py makes; tools and arguments are JSON within strings.
type chatCase struct {
	Messages []struct {
		Role, Content string
		Reasoning     string                             `json:"reasoning_content"`
		Calls         []struct{ Name, Arguments string } `json:"tool_calls"`
	}
	Tools      []string
	Generation bool `json:"add_generation_prompt"`
	Thinking   bool `json:"enable_thinking"`
	Prompt     string
}

func (c *chatCase) input() ([]Message, ChatOptions) {
	opts := ChatOptions{AddGenerationPrompt: c.Generation, EnableThinking: c.Thinking}
	for _, tool := range c.Tools {
		opts.Tools = append(opts.Tools, json.RawMessage(tool))
	}
	var messages []Message
	for _, m := range c.Messages {
		out := Message{Role: m.Role, Content: m.Content, ReasoningContent: m.Reasoning}
		for _, call := range m.Calls {
			out.ToolCalls = append(out.ToolCalls, ToolCall{call.Name, json.RawMessage(call.Arguments)})
		}
		messages = append(messages, out)
	}
	return messages, opts
}

func TestChatGolden(t *testing.T) {
	f, err := os.Open(filepath.Join("testdata", "chat.jsonl.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	n, wrong := 0, 0
	for d := json.NewDecoder(bufio.NewReader(z)); d.More(); n++ {
		var c chatCase
		if err := d.Decode(&c); err != nil {
			t.Fatal(err)
		}
		messages, opts := c.input()
		got, err := RenderChat(messages, opts)
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		if got != c.Prompt {
			if wrong++; wrong <= 5 {
				t.Errorf("messages %+v\ntools %s\n got %q\nwant %q", c.Messages, c.Tools, got, c.Prompt)
			}
		}
	}
	if wrong > 0 || n < 400 {
		t.Errorf("%d of %d cases differ", wrong, n)
	}
}

func TestChatRefuses(t *testing.T) {
	call := func(arguments string) []Message {
		return []Message{{Role: "assistant", ToolCalls: []ToolCall{{"f", json.RawMessage(arguments)}}}}
	}
	user := []Message{{Role: "user"}}
	for _, c := range []struct {
		name     string
		messages []Message
		tools    []json.RawMessage
		want     string
	}{
		{"empty", nil, nil, "at least one message"},
		{"role", []Message{{Role: "user"}, {Role: "developer"}}, nil, `message 1: unknown role "developer"`},
		{"no arguments", call(""), nil, "message 0: tool call 0: no JSON"},
		{"cut arguments", call(`{"a":`), nil, "message 0: tool call 0: unexpected end of JSON input"},
		{"cut list", call(`[1`), nil, "message 0: tool call 0: "},
		{"too deep", call(strings.Repeat("[", 20000) + strings.Repeat("]", 20000)), nil, "message 0: tool call 0: "},
		{"two values", call(`{} {}`), nil, "message 0: tool call 0: invalid character '{' after top-level value"},
		{"tool", user, []json.RawMessage{json.RawMessage(`{}`), json.RawMessage(`{a}`)}, "tool 1: invalid character"},
	} {
		text, err := RenderChat(c.messages, ChatOptions{Tools: c.tools})
		if err == nil || !strings.Contains(err.Error(), c.want) || text != "" {
			t.Errorf("%s: got %q, %v; want %q", c.name, text, err, c.want)
		}
	}
}
