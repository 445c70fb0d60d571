package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
)

// Number is a number, or the reason why there is none. In JSON it is a number or null; the reason stands beside it in
// the enclosing object, in "why" under the field's name, or in "reason" where one reason serves the whole object.
// The zero Number is absent without a reason, which Encode and Decode refuse.
type Number struct {
	v   float64
	ok  bool
	why string
}

// Of is the number v. NaN and the infinities are absent numbers.
func Of(v float64) Number {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return Absent("not a finite number")
	}
	return Number{v: v, ok: true}
}

// Absent is no number, and why.
func Absent(why string) Number { return Number{why: why} }

// Get returns the number and whether there is one.
func (n Number) Get() (float64, bool) { return n.v, n.ok }

// OK reports whether there is a number.
func (n Number) OK() bool { return n.ok }

// Or returns the number, or def where there is none.
func (n Number) Or(def float64) float64 {
	if n.ok {
		return n.v
	}
	return def
}

// Why is the reason of an absent number.
func (n Number) Why() string { return n.why }

// Equal compares value and reason.
func (n Number) Equal(m Number) bool { return n == m }

// MarshalJSON writes the number or null.
func (n Number) MarshalJSON() ([]byte, error) {
	if !n.ok {
		return []byte("null"), nil
	}
	return json.Marshal(n.v)
}

// UnmarshalJSON reads a number or null.
func (n *Number) UnmarshalJSON(b []byte) error {
	*n = Number{}
	if bytes.Equal(b, []byte("null")) {
		return nil
	}
	n.ok = true
	return json.Unmarshal(b, &n.v)
}

var numberType = reflect.TypeFor[Number]()

// walk calls visit for every struct below v that holds Numbers, with its path.
func walk(v reflect.Value, path string, visit func(s reflect.Value, path string) error) error {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			return walk(v.Elem(), path, visit)
		}
	case reflect.Slice:
		for i := range v.Len() {
			if err := walk(v.Index(i), fmt.Sprintf("%s[%d]", path, i), visit); err != nil {
				return err
			}
		}
	case reflect.Struct:
		return walkStruct(v, path, visit)
	}
	return nil
}

func walkStruct(v reflect.Value, path string, visit func(s reflect.Value, path string) error) error {
	if v.Type() == numberType || v.Type().PkgPath() != numberType.PkgPath() {
		return nil
	}
	holds := false
	for i := range v.NumField() {
		f := v.Field(i)
		if f.Type() == numberType {
			holds = true
			continue
		}
		if err := walk(f, join(path, jsonName(v.Type().Field(i))), visit); err != nil {
			return err
		}
	}
	if !holds {
		return nil
	}
	return visit(v, path)
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// tell writes the reasons of absent numbers beside them; an absent number without a reason of its own or beside it is an
// error.
func tell(s reflect.Value, path string) error {
	why := map[string]string{}
	reason := ""
	for i := range s.NumField() {
		n, ok := s.Field(i).Interface().(Number)
		if !ok || n.ok {
			continue
		}
		name := jsonName(s.Type().Field(i))
		if n.why == "" {
			n.why = beside(s, name)
		}
		if n.why == "" {
			return fmt.Errorf("%s is absent without a reason", join(path, name))
		}
		why[name], reason = n.why, n.why
	}
	if f := s.FieldByName("Why"); f.IsValid() {
		if len(why) == 0 {
			why = nil
		}
		f.Set(reflect.ValueOf(why))
		return nil
	}
	if len(why) > 0 {
		s.FieldByName("Reason").SetString(reason)
	}
	return nil
}

// beside is the reason that stands next to a field.
func beside(s reflect.Value, name string) string {
	reasons, _ := fieldOf(s, "Why").(map[string]string)
	if why := reasons[name]; why != "" {
		return why
	}
	shared, _ := fieldOf(s, "Reason").(string)
	return shared
}

// Explain gives every absent number of v (a pointer to a type of this package) that has no reason yet the reason why.
func Explain(v any, why string) {
	_ = walk(reflect.ValueOf(v), "", func(s reflect.Value, _ string) error { // the visitor never fails
		for i := range s.NumField() {
			n, ok := s.Field(i).Interface().(Number)
			if ok && !n.ok && n.why == "" && beside(s, jsonName(s.Type().Field(i))) == "" {
				s.Field(i).Set(reflect.ValueOf(Absent(why)))
			}
		}
		return nil
	})
}

// learn puts the reasons that stand beside absent numbers into them.
func learn(s reflect.Value, path string) error {
	for i := range s.NumField() {
		n, ok := s.Field(i).Interface().(Number)
		if !ok || n.ok {
			continue
		}
		name := jsonName(s.Type().Field(i))
		why := beside(s, name)
		if why == "" {
			return fmt.Errorf("%s is null (or missing) without a reason", join(path, name))
		}
		s.Field(i).Set(reflect.ValueOf(Absent(why)))
	}
	return nil
}

func fieldOf(s reflect.Value, name string) any {
	if f := s.FieldByName(name); f.IsValid() {
		return f.Interface()
	}
	return nil
}
