// Package api is the wire: the JSON of SGLang's native /generate and of OpenAI's completions and chat, and the framing
// of server-sent events. It decodes requests into plain structs and appends answers to byte slices; it validates
// shapes, never values, and knows no engine, no tokenizer and no HTTP.
//
// Requests keep "absent" and "null" alike as nil pointers, so that the server's defaults apply to both; unknown keys
// are ignored, as the peers ignore them; keys that would change the answer and that nobody here implements are of type
// Off, so that the server can refuse them by name.
//
// Start at DecodeGenerate for the way in and at AppendGenerate for the way out.
package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// BadBody says why a body could not be decoded, for the one who sent it.
type BadBody struct {
	Param string // the field's path, or "" for the whole body
	Msg   string
}

func (e *BadBody) Error() string { return e.Msg }

// DecodeGenerate decodes the body of /generate. Errors are *BadBody.
func DecodeGenerate(body []byte) (*GenerateRequest, error) {
	return decodeWithIDs(body, "input_ids", func(r *GenerateRequest) *Prompt { return &r.InputIDs })
}

// DecodeCompletion decodes the body of /v1/completions. Errors are *BadBody.
func DecodeCompletion(body []byte) (*CompletionRequest, error) {
	return decodeWithIDs(body, "prompt", func(r *CompletionRequest) *Prompt { return &r.Prompt })
}

// DecodeChat decodes the body of /v1/chat/completions. Errors are *BadBody.
func DecodeChat(body []byte) (*ChatRequest, error) { return Decode[ChatRequest](body) }

// Decode decodes any other body, which must be a JSON object. Errors are *BadBody.
func Decode[T any](body []byte) (*T, error) {
	v := new(T)
	if err := json.Unmarshal(body, v); err != nil {
		return nil, explain(err)
	}
	if first := firstByte(body); first != '{' {
		return nil, &BadBody{Msg: "the body must be a JSON object"}
	}
	return v, nil
}

// decodeWithIDs is Decode for requests that may carry a long array of token ids under key. The array is cut out and
// parsed by hand, 15 times faster than encoding/json would; whatever is unusual takes the ordinary way.
func decodeWithIDs[T any](body []byte, key string, field func(*T) *Prompt) (*T, error) {
	if rest, ids, ok := cutIDs(body, key); ok {
		v := new(T)
		if json.Unmarshal(rest, v) == nil {
			*field(v) = ids
			return v, nil
		}
	}
	return Decode[T](body)
}

func firstByte(body []byte) byte {
	for _, c := range body {
		if !isSpace(c) {
			return c
		}
	}
	return 0
}

// explain turns encoding/json's errors into sentences about the request.
func explain(err error) *BadBody {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind):
		if kind.Field == "" {
			return &BadBody{Msg: fmt.Sprintf("the body: expected %s, got %s", wanted(kind.Type), kind.Value)}
		}
		field := strings.TrimPrefix(kind.Field, "OpenAIOptions.") // encoding/json names the embedded struct too
		return &BadBody{Param: field, Msg: fmt.Sprintf("%s: expected %s, got %s", field, wanted(kind.Type), kind.Value)}
	case errors.As(err, &syntax):
		return &BadBody{Msg: fmt.Sprintf("the body is not valid JSON: %s (at byte %d)", strings.TrimPrefix(syntax.Error(), "json: "), syntax.Offset)}
	}
	return &BadBody{Msg: "the body is not valid JSON: " + strings.TrimPrefix(err.Error(), "json: ")}
}

// wanted names a Go type as the one who wrote the JSON would.
func wanted(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[Prompt]():
		return "a string, a list of strings, a list of token ids, or a list of such lists"
	case reflect.TypeFor[Strings](), reflect.TypeFor[Content]():
		return "a string or a list of strings"
	case reflect.TypeFor[SamplingList]():
		return "an object or a list of objects"
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "an integer"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	case reflect.Pointer:
		return wanted(t.Elem())
	}
	return "an object"
}
