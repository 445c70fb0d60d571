package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// pythonJSON writes a JSON value as Python's json.dumps(json.loads(raw), ensure_ascii=False) does, which is what the
// template's tojson means: ", " and ": ", keys in their order, floats as repr has them. Another spacing would be other
// tokens than the model was trained on.
func pythonJSON(raw json.RawMessage) (string, error) {
	if len(raw) == 0 {
		return "", errors.New("no JSON")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	text, err := pythonValue(nil, d)
	if err != nil {
		return "", err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return "", errors.New("more than one JSON value")
	}
	return string(text), nil
}

// pythonValue appends the next value of d.
func pythonValue(dst []byte, d *json.Decoder) ([]byte, error) {
	token, err := d.Token()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	switch v := token.(type) {
	case json.Delim:
		if v == '[' {
			return pythonList(dst, d)
		}
		return pythonObject(dst, d)
	case string:
		return pythonString(dst, v), nil
	case json.Number:
		return append(dst, pythonNumber(string(v))...), nil
	case bool:
		return strconv.AppendBool(dst, v), nil
	}
	return append(dst, "null"...), nil
}

func pythonList(dst []byte, d *json.Decoder) ([]byte, error) {
	dst = append(dst, '[')
	for first := true; d.More(); first = false {
		if !first {
			dst = append(dst, ", "...)
		}
		var err error
		if dst, err = pythonValue(dst, d); err != nil {
			return nil, err
		}
	}
	_, err := d.Token()
	return append(dst, ']'), err
}

// pythonObject keeps of a key that comes twice the first place and the last value, as a dict does.
func pythonObject(dst []byte, d *json.Decoder) ([]byte, error) {
	var keys []string
	values := map[string][]byte{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, err
		}
		key := token.(string) // the decoder lets nothing else through
		value, err := pythonValue(nil, d)
		if err != nil {
			return nil, err
		}
		if _, twice := values[key]; !twice {
			keys = append(keys, key)
		}
		values[key] = value
	}
	dst = append(dst, '{')
	for i, key := range keys {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		dst = append(pythonString(dst, key), ": "...)
		dst = append(dst, values[key]...)
	}
	_, err := d.Token()
	return append(dst, '}'), err
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
