package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Message is one turn of a chat.
type Message struct {
	Role             string // system, user, assistant or tool
	Content          string
	ReasoningContent string     // of an assistant; when empty, it is looked for in Content, before </think>
	ToolCalls        []ToolCall // of an assistant
	Name             string     // accepted, as by the reference, and not shown to the model
}

// ToolCall is a call that an assistant made.
type ToolCall struct {
	Name string
	// Arguments is a JSON object, or a JSON string that contains one, which is put in as it is.
	Arguments json.RawMessage
}

// ChatOptions are what the template can be told.
type ChatOptions struct {
	AddGenerationPrompt bool // end with the start of the assistant's answer
	EnableThinking      bool // false puts an empty thought there
	Tools               []json.RawMessage
}

const (
	turnStart     = "<|im_start|>"
	turnEnd       = "<|im_end|>\n"
	thinkStart    = "<think>"
	thinkEnd      = "</think>"
	responseStart = "<tool_response>"
	responseEnd   = "</tool_response>"

	toolsBefore = "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n" +
		"You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
	toolsAfter = "\n</tools>\n\nFor each function call, return a json object with function name and arguments within " +
		"<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>"
)

// RenderChat is the prompt that Qwen3's chat template makes of messages. It refuses an empty chat, a role that the
// template does not know and JSON that is none.
func RenderChat(messages []Message, opts ChatOptions) (string, error) {
	if len(messages) == 0 {
		return "", errors.New("a chat needs at least one message")
	}
	for i, m := range messages {
		switch m.Role {
		case "system", "user", "assistant", "tool":
		default:
			return "", fmt.Errorf("message %d: unknown role %q", i, m.Role)
		}
	}
	c := chat{messages: messages, query: lastQuery(messages)}
	if err := c.head(opts.Tools); err != nil {
		return "", err
	}
	for i := range messages {
		if err := c.turn(i); err != nil {
			return "", fmt.Errorf("message %d: %w", i, err)
		}
	}
	if opts.AddGenerationPrompt {
		c.put(turnStart, "assistant\n")
		if !opts.EnableThinking {
			c.put(thinkStart, "\n\n", thinkEnd, "\n\n")
		}
	}
	return c.out.String(), nil
}

// chat is a prompt in the making.
type chat struct {
	out      strings.Builder
	messages []Message
	query    int // index of the last real question; thoughts before it are left out
}

func (c *chat) put(parts ...string) {
	for _, p := range parts {
		c.out.WriteString(p)
	}
}

// lastQuery is the index of the last message of a user that is no tool's response in disguise, or the last of all.
func lastQuery(messages []Message) int {
	for i := len(messages) - 1; i >= 0; i-- {
		m := &messages[i]
		if m.Role == "user" && !(strings.HasPrefix(m.Content, responseStart) && strings.HasSuffix(m.Content, responseEnd)) {
			return i
		}
	}
	return len(messages) - 1
}

// head writes a leading system message, and the tools.
func (c *chat) head(tools []json.RawMessage) error {
	first := &c.messages[0]
	if len(tools) == 0 {
		if first.Role == "system" {
			c.put(turnStart, "system\n", first.Content, turnEnd)
		}
		return nil
	}
	c.put(turnStart, "system\n")
	if first.Role == "system" {
		c.put(first.Content, "\n\n")
	}
	c.put(toolsBefore)
	for i, tool := range tools {
		text, err := pythonJSON(tool)
		if err != nil {
			return fmt.Errorf("tool %d: %w", i, err)
		}
		c.put("\n", text)
	}
	c.put(toolsAfter, turnEnd)
	return nil
}

func (c *chat) turn(i int) error {
	m := &c.messages[i]
	switch m.Role {
	case "user":
		c.put(turnStart, m.Role, "\n", m.Content, turnEnd)
	case "system":
		if i > 0 { // head wrote the first
			c.put(turnStart, m.Role, "\n", m.Content, turnEnd)
		}
	case "assistant":
		return c.assistant(i)
	case "tool":
		c.toolResponse(i)
	}
	return nil
}

// assistant writes an answer, with its thought only if it is part of the answer to the last question.
func (c *chat) assistant(i int) error {
	m := &c.messages[i]
	thought, content := splitThought(m)
	c.put(turnStart, "assistant\n")
	if i > c.query && (i == len(c.messages)-1 || thought != "") {
		c.put(thinkStart, "\n", strings.Trim(thought, "\n"), "\n", thinkEnd, "\n\n", strings.TrimLeft(content, "\n"))
	} else {
		c.put(content)
	}
	for j, call := range m.ToolCalls {
		if j > 0 || content != "" {
			c.put("\n")
		}
		arguments, err := callArguments(call.Arguments)
		if err != nil {
			return fmt.Errorf("tool call %d: %w", j, err)
		}
		c.put("<tool_call>\n{\"name\": \"", call.Name, "\", \"arguments\": ", arguments, "}\n</tool_call>")
	}
	c.put(turnEnd)
	return nil
}

// splitThought parts what an assistant thought from what it said.
func splitThought(m *Message) (thought, content string) {
	if m.ReasoningContent != "" {
		return m.ReasoningContent, m.Content
	}
	before, _, ok := strings.Cut(m.Content, thinkEnd)
	if !ok {
		return "", m.Content
	}
	content = strings.TrimLeft(m.Content[strings.LastIndex(m.Content, thinkEnd)+len(thinkEnd):], "\n")
	thought = strings.TrimRight(before, "\n")
	if at := strings.LastIndex(thought, thinkStart); at >= 0 {
		thought = thought[at+len(thinkStart):]
	}
	return strings.TrimLeft(thought, "\n"), content
}

// toolResponse writes what a tool gave back; responses in a row share a user's turn.
func (c *chat) toolResponse(i int) {
	if i == 0 || c.messages[i-1].Role != "tool" {
		c.put(turnStart, "user")
	}
	c.put("\n", responseStart, "\n", c.messages[i].Content, "\n", responseEnd)
	if i == len(c.messages)-1 || c.messages[i+1].Role != "tool" {
		c.put(turnEnd)
	}
}

func callArguments(raw json.RawMessage) (string, error) {
	if trimmed := bytes.TrimSpace(raw); len(trimmed) == 0 || trimmed[0] != '"' {
		return pythonJSON(raw)
	}
	var text string
	err := json.Unmarshal(raw, &text)
	return text, err
}

// pythonJSON writes a JSON value as Python's json.dumps(json.loads(raw), ensure_ascii=False) does, which is what the
// template's tojson means: ", " and ": ", keys in their order, floats as repr has them. Another spacing would be other
// tokens than the model was trained on. Its time is linear; nesting deeper than encoding/json allows is refused.
func pythonJSON(raw json.RawMessage) (string, error) {
	if len(raw) == 0 {
		return "", errors.New("no JSON")
	}
	if err := json.Unmarshal(raw, new(json.RawMessage)); err != nil { // one value, well formed and not too deep
		return "", err
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	v, err := readValue(d)
	if err != nil {
		return "", err
	}
	return string(appendPython(make([]byte, 0, len(raw)+len(raw)/8), v)), nil
}

// object is a JSON object as a Python dict: of a key that comes twice it keeps the first place and the last value.
type object struct {
	keys   []string
	values map[string]any
}

// readValue is the next value of d: nil, bool, json.Number, string, []any or *object.
func readValue(d *json.Decoder) (any, error) {
	token, err := d.Token()
	switch token {
	case json.Delim('['):
		list := []any{}
		for d.More() {
			v, err := readValue(d)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err := d.Token()
		return list, err
	case json.Delim('{'):
		return readObject(d)
	}
	return token, err
}

func readObject(d *json.Decoder) (*object, error) {
	o := &object{values: map[string]any{}}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, err
		}
		key := token.(string) // the decoder lets nothing else through
		if _, twice := o.values[key]; !twice {
			o.keys = append(o.keys, key)
		}
		if o.values[key], err = readValue(d); err != nil {
			return nil, err
		}
	}
	_, err := d.Token()
	return o, err
}

func appendPython(dst []byte, v any) []byte {
	switch v := v.(type) {
	case []any:
		dst = append(dst, '[')
		for i, item := range v {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = appendPython(dst, item)
		}
		return append(dst, ']')
	case *object:
		dst = append(dst, '{')
		for i, key := range v.keys {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = append(pythonString(dst, key), ": "...)
			dst = appendPython(dst, v.values[key])
		}
		return append(dst, '}')
	case string:
		return pythonString(dst, v)
	case json.Number:
		return append(dst, pythonNumber(string(v))...)
	case bool:
		return strconv.AppendBool(dst, v)
	}
	return append(dst, "null"...)
}

func pythonString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r == '\n':
			dst = append(dst, `\n`...)
		case r == '\r':
			dst = append(dst, `\r`...)
		case r == '\t':
			dst = append(dst, `\t`...)
		case r == '\f':
			dst = append(dst, `\f`...)
		case r == '\b':
			dst = append(dst, `\b`...)
		case r < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}

// pythonNumber writes an integer as it is, and anything else as repr(float(n)).
func pythonNumber(n string) string {
	if n == "-0" {
		return "0"
	}
	if !strings.ContainsAny(n, ".eE") {
		return n
	}
	f, _ := strconv.ParseFloat(n, 64) // n is a number; one out of range becomes an infinity, as in Python
	switch {
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	text := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}
