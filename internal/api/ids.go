package api

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
)

// cutIDs finds key's value in the top-level object of body, and where it is a plain array of token ids, or of such
// arrays, returns the ids and the body with null in its place. A JSON value is replaced by a JSON value where a value
// stands, so rest is valid JSON exactly if body is. ok is false for everything unusual: escapes in keys, a key that
// differs from key in case only or comes twice, numbers that are not small plain integers, empty arrays.
func cutIDs(body []byte, key string) (rest []byte, ids Prompt, ok bool) {
	start, end := -1, -1
	for i, more := openObject(body); more; {
		name, at, good := readKey(body, i)
		if !good {
			return nil, Prompt{}, false
		}
		if bytes.EqualFold(name, []byte(key)) {
			if string(name) != key || start >= 0 || at >= len(body) || body[at] != '[' {
				return nil, Prompt{}, false
			}
			start = at
			if ids, end, good = parsePrompt(body, at); !good {
				return nil, Prompt{}, false
			}
			at = end
		} else if at = skipValue(body, at); at < 0 {
			return nil, Prompt{}, false
		}
		i, more = nextMember(body, at)
	}
	if start < 0 {
		return nil, Prompt{}, false
	}
	rest = make([]byte, 0, len(body)-(end-start)+4)
	rest = append(append(append(rest, body[:start]...), "null"...), body[end:]...)
	return rest, ids, true
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

func skipSpace(b []byte, i int) int {
	for i < len(b) && isSpace(b[i]) {
		i++
	}
	return i
}

// openObject is where the first member's key starts.
func openObject(b []byte) (int, bool) {
	i := skipSpace(b, 0)
	if i >= len(b) || b[i] != '{' {
		return 0, false
	}
	i = skipSpace(b, i+1)
	return i, i < len(b) && b[i] == '"'
}

// readKey reads the key at b[i] and returns where its value starts.
func readKey(b []byte, i int) (name []byte, value int, ok bool) {
	end := skipString(b, i)
	if end < 0 {
		return nil, 0, false
	}
	name = b[i+1 : end-1]
	i = skipSpace(b, end)
	if i >= len(b) || b[i] != ':' || bytes.IndexByte(name, '\\') >= 0 {
		return nil, 0, false
	}
	return name, skipSpace(b, i+1), true
}

// nextMember is where the key after the value that ended at i starts; more is false at the object's end and at
// anything else, which encoding/json will judge.
func nextMember(b []byte, i int) (int, bool) {
	i = skipSpace(b, i)
	if i >= len(b) || b[i] != ',' {
		return i, false
	}
	i = skipSpace(b, i+1)
	return i, i < len(b) && b[i] == '"'
}

// skipString is the end of the string that starts at b[i], or -1.
func skipString(b []byte, i int) int {
	if i >= len(b) || b[i] != '"' {
		return -1
	}
	for j := i + 1; ; {
		q := bytes.IndexByte(b[j:], '"')
		if q < 0 {
			return -1
		}
		j += q
		slashes := 0
		for b[j-1-slashes] == '\\' {
			slashes++
		}
		j++
		if slashes%2 == 0 {
			return j
		}
	}
}

// skipValue is the end of the value that starts at b[i], or -1. It counts brackets without telling their kinds apart:
// encoding/json sees the same bytes later.
func skipValue(b []byte, i int) int {
	depth := 0
	for i < len(b) {
		switch c := b[i]; c {
		case '"':
			if i = skipString(b, i); i < 0 {
				return -1
			}
			if depth == 0 {
				return i
			}
			continue
		case '{', '[':
			depth++
		case '}', ']', ',':
			if depth == 0 {
				return i
			}
			if c != ',' {
				depth--
				if depth == 0 {
					return i + 1
				}
			}
		}
		i++
	}
	return -1
}

// firstIDs bounds the first allocation: a body of commas must not reserve four times its size.
const firstIDs = 16384

// parsePrompt parses [1,2,3] or [[1,2],[3]] at b[i].
func parsePrompt(b []byte, i int) (p Prompt, end int, ok bool) {
	arena := make([]int32, 0, min(bytes.Count(b[i:], []byte{','})+1, firstIDs))
	j := skipSpace(b, i+1)
	if j < len(b) && b[j] != '[' {
		arena, end, ok = parseInts(b, i, arena)
		return Prompt{IDs: [][]int32{arena}}, end, ok
	}
	p.List = true
	for {
		from := len(arena)
		if arena, j, ok = parseInts(b, j, arena); !ok {
			return Prompt{}, 0, false
		}
		p.IDs = append(p.IDs, arena[from:len(arena):len(arena)])
		j = skipSpace(b, j)
		if j >= len(b) || b[j] != ',' && b[j] != ']' {
			return Prompt{}, 0, false
		}
		if b[j] == ']' {
			return p, j + 1, true
		}
		j = skipSpace(b, j+1)
	}
}

// parseInts appends the integers of the array at b[i]; it takes digits only, no sign, no leading zero, and at least
// one number.
func parseInts(b []byte, i int, dst []int32) (ids []int32, end int, ok bool) {
	if i >= len(b) || b[i] != '[' {
		return dst, 0, false
	}
	for i++; ; i++ {
		i = skipSpace(b, i)
		first, v := i, uint64(0)
		for i < len(b) && b[i]-'0' <= 9 && i-first < 10 {
			v = v*10 + uint64(b[i]-'0')
			i++
		}
		if i == first || v > math.MaxInt32 || b[first] == '0' && i-first > 1 {
			return dst, 0, false
		}
		dst = append(dst, int32(v))
		if i = skipSpace(b, i); i >= len(b) || b[i] != ',' && b[i] != ']' {
			return dst, 0, false
		}
		if b[i] == ']' {
			return dst, i + 1, true
		}
	}
}

// Prompt is one or more prompts, as text or as token ids; the zero value is an absent or null one.
type Prompt struct {
	Texts []string
	IDs   [][]int32
	List  bool // given as a list of prompts: the answer is a list too
}

// IsZero reports whether nothing was given.
func (p *Prompt) IsZero() bool { return p.Texts == nil && p.IDs == nil }

// Len is the number of prompts.
func (p *Prompt) Len() int { return max(len(p.Texts), len(p.IDs)) }

// UnmarshalJSON takes a string, a list of strings, a list of ids and a list of lists of ids. An empty list is one
// prompt without ids.
func (p *Prompt) UnmarshalJSON(b []byte) error {
	*p = Prompt{}
	switch {
	case string(b) == "null":
		return nil
	case b[0] == '"':
		p.Texts = make([]string, 1)
		return json.Unmarshal(b, &p.Texts[0])
	case b[0] != '[':
		return mistyped(b, reflect.TypeFor[Prompt]())
	}
	var err error
	switch i := skipSpace(b, 1); b[i] {
	case ']':
		p.IDs = [][]int32{{}}
		return nil
	case '"':
		p.List, err = true, json.Unmarshal(b, &p.Texts)
	case '[':
		p.List, err = true, unmarshalIDs(b, &p.IDs)
	default:
		p.IDs = make([][]int32, 1)
		err = unmarshalIDs(b, &p.IDs[0])
	}
	if err != nil {
		return mistyped(b, reflect.TypeFor[Prompt]())
	}
	return nil
}

// unmarshalIDs decodes ids; encoding/json would take a null among them for 0.
func unmarshalIDs(b []byte, dst any) error {
	if bytes.Contains(b, []byte("null")) {
		return &json.UnmarshalTypeError{}
	}
	return json.Unmarshal(b, dst)
}

// mistyped is the error of a value that has none of the shapes that t takes. encoding/json adds the field's path.
func mistyped(b []byte, t reflect.Type) error {
	kind := "number"
	switch b[0] {
	case '"':
		kind = "string"
	case '{':
		kind = "object"
	case '[':
		kind = "a list of something else"
	case 't', 'f':
		kind = "bool"
	}
	return &json.UnmarshalTypeError{Value: kind, Type: t}
}
