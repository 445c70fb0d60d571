package api

// Family is whose error shape an answer uses.
type Family uint8

// The families.
const (
	Native Family = iota // /generate and the control routes
	OpenAI               // /v1/…
)

// Fault is an error as the client sees it.
type Fault struct {
	Status  int    // HTTP status
	Type    string // the status in words, or OpenAI's error type
	Message string
	Param   string // the field at fault, or ""
	Code    string // a machine's word for it, or "": the status
}

// AppendFault appends the body of an error answer. Native bad input is {"error":{"message":…}}; an unknown model is
// OpenAI's nested object; all else is the flat object of the peers, {"object":"error",…}.
func AppendFault(dst []byte, family Family, f *Fault) []byte {
	switch {
	case f.Code == "model_not_found":
		return append(f.append(append(dst, `{"error":{`...)), '}', '}')
	case family == Native && f.Status < 500:
		return append(AppendString(append(dst, `{"error":{"message":`...), f.Message), '}', '}')
	}
	return append(f.append(append(dst, `{"object":"error",`...)), '}')
}

// AppendStreamFault appends the frame that ends a stream which failed after its headers were sent.
func AppendStreamFault(dst []byte, family Family, f *Fault) []byte {
	dst = append(append(dst, EventStart...), `{"error":{`...)
	if family == OpenAI {
		dst = append(dst, `"object":"error",`...)
	}
	dst = f.append(dst)
	if f.Status == 503 {
		dst = append(dst, `,"retryable":true`...)
	} else {
		dst = append(dst, `,"retryable":false`...)
	}
	return append(append(dst, "}}"...), EventEnd...)
}

// append appends the four members that all shapes share.
func (f *Fault) append(dst []byte) []byte {
	dst = AppendString(append(dst, `"message":`...), f.Message)
	dst = AppendString(append(dst, `,"type":`...), f.Type)
	dst = append(dst, `,"param":`...)
	if f.Param == "" {
		dst = append(dst, "null"...)
	} else {
		dst = AppendString(dst, f.Param)
	}
	if f.Code != "" {
		return AppendString(append(dst, `,"code":`...), f.Code)
	}
	return appendInt(dst, `,"code":`, f.Status)
}
