package api

import (
	"encoding/json"
	"math"
	"strconv"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// AppendString appends s as a JSON string. Bytes that are no UTF-8 become U+FFFD.
func AppendString[T string | []byte](dst []byte, s T) []byte {
	dst = append(dst, '"')
	dst = AppendEscaped(dst, s)
	return append(dst, '"')
}

// AppendEscaped appends what stands between the quotes, so that a growing string can be escaped piece by piece. Each
// piece must hold whole characters.
func AppendEscaped[T string | []byte](dst []byte, s T) []byte {
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= ' ' && c != '"' && c != '\\' {
				i++
				continue
			}
			dst = appendControl(append(dst, s[from:i]...), c)
			i++
			from = i
			continue
		}
		end := min(i+utf8.UTFMax, len(s))
		r, size := utf8.DecodeRuneInString(string(s[i:end]))
		if r == utf8.RuneError && size == 1 {
			dst = append(append(dst, s[from:i]...), `\ufffd`...)
			from = i + 1
		}
		i += size
	}
	return append(dst, s[from:]...)
}

func appendControl(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
}

// AppendIDs appends ids with commas between, without brackets; more says that dst already holds some.
func AppendIDs(dst []byte, ids []int32, more bool) []byte {
	for _, id := range ids {
		if more {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, int64(id), 10)
		more = true
	}
	return dst
}

// AppendSeconds appends a number of seconds to the microsecond; a number that does not exist is null.
func AppendSeconds(dst []byte, s float64) []byte {
	if math.IsNaN(s) || math.IsInf(s, 0) {
		return append(dst, "null"...)
	}
	return strconv.AppendFloat(dst, s, 'f', 6, 64)
}

func appendInt(dst []byte, key string, v int) []byte {
	return strconv.AppendInt(append(dst, key...), int64(v), 10)
}

// AppendValue appends any value as encoding/json writes it; for answers that are not on the hot path. A value that
// cannot be written is a broken invariant.
func AppendValue(dst []byte, v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("api: " + err.Error())
	}
	return append(dst, b...)
}

// Framing of server-sent events, as SGLang and OpenAI write them: one line of data and one empty line.
const (
	EventStart = "data: "
	EventEnd   = "\n\n"
	EventDone  = "data: [DONE]\n\n"
)
