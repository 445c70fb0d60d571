package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// expandFlags rewrites a command line of Python's argparse for kong: a unique prefix of a flag becomes the flag, and a
// flag takes all the values that follow it where it may be repeated. Scripts in the wild rely on both.
func expandFlags(flags []*kong.Flag, args []string) ([]string, error) {
	var out []string
	for i := 0; i < len(args); i++ {
		name, value, inline := strings.Cut(args[i], "=")
		if !strings.HasPrefix(name, "--") || name == "--" {
			out = append(out, args[i])
			continue
		}
		f, err := findFlag(flags, name[2:])
		if err != nil {
			return nil, err
		}
		values := []string{value}
		if !inline {
			values = following(f, args[i+1:])
			i += len(values)
		}
		switch {
		case f.IsBool() && inline:
			return nil, fmt.Errorf("--%s takes no value", f.Name)
		case f.IsBool():
			out = append(out, "--"+f.Name)
		case len(values) == 0:
			return nil, fmt.Errorf("--%s needs a value", f.Name)
		}
		if !f.IsBool() {
			for _, v := range values {
				out = append(out, "--"+f.Name+"="+v)
			}
		}
	}
	return out, nil
}

// findFlag is the flag of that name, or the only one that starts with it.
func findFlag(flags []*kong.Flag, name string) (*kong.Flag, error) {
	var found []*kong.Flag
	for _, f := range flags {
		if f.Name == name {
			return f, nil
		}
		if strings.HasPrefix(f.Name, name) {
			found = append(found, f)
		}
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("unknown flag --%s", name)
	case 1:
		return found[0], nil
	}
	names := make([]string, len(found))
	for i, f := range found {
		names[i] = "--" + f.Name
	}
	slices.Sort(names)
	return nil, fmt.Errorf("ambiguous flag --%s: could be %s", name, strings.Join(names, ", "))
}

// following are the values of a flag among the arguments after it: none for a switch, one, or for a repeatable flag
// all up to the next flag. A value may start with one dash, as a negative number does.
func following(f *kong.Flag, rest []string) []string {
	if f.IsBool() {
		return nil
	}
	n := 0
	for n < len(rest) && !strings.HasPrefix(rest[n], "--") {
		if n++; !f.IsCumulative() {
			break
		}
	}
	return rest[:n]
}
