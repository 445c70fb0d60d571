package cache

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"larder/internal/kv"
)

var update = flag.Bool("update", false, "rewrite the expected output of testdata/*.txt")

// TestScripts runs testdata/*.txt: paragraphs of commands, a line "----", and what they print. Each command prints the
// moves that it orders as "#number load|store source>destination"; all invariants, and the content of every block, are
// checked after each. Lines that begin with # are comments.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			old, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := &script{names: map[string]*runner{}}
			var paragraphs []string
			for _, p := range strings.Split(strings.TrimSpace(string(old)), "\n\n") {
				commands, _, _ := strings.Cut(p, "\n----")
				paragraphs = append(paragraphs, strings.TrimSpace(commands+"\n----\n"+s.run(commands)))
			}
			now := strings.Join(paragraphs, "\n\n") + "\n"
			if *update {
				if err := os.WriteFile(file, []byte(now), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if now != string(old) {
				t.Errorf("run with -update and look at the difference; now:\n%s", now)
			}
		})
	}
}

// script is the state between commands.
type script struct {
	*world
	names map[string]*runner
}

func (s *script) run(commands string) string {
	var out strings.Builder
	for line := range strings.Lines(commands) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		f := strings.Fields(line)
		if text := s.command(f[0], f[1:]); text != "" {
			fmt.Fprintf(&out, "%s\n", text)
		}
		for _, m := range s.drain() {
			fmt.Fprintf(&out, "  #%d %s %d>%d\n", m.ID, map[kv.Tier]string{kv.Device: "load", kv.Host: "store"}[m.To], m.Src, m.Dst)
		}
		if err := s.check(); err != nil {
			fmt.Fprintf(&out, "CHECK: %v\n", err)
		}
	}
	return out.String()
}

// option reads name=number among the arguments.
func option(args []string, name string, otherwise int) int {
	for _, a := range args {
		if v, ok := strings.CutPrefix(a, name+"="); ok {
			n, err := strconv.Atoi(v)
			if err != nil {
				panic(err)
			}
			return n
		}
	}
	return otherwise
}

// numbers reads "1-4,9" as 1 2 3 4 9.
func numbers(arg string) (out []int32) {
	for part := range strings.SplitSeq(arg, ",") {
		first, last, span := strings.Cut(part, "-")
		if !span {
			last = first
		}
		a, err := strconv.Atoi(first)
		b, err2 := strconv.Atoi(last)
		if err != nil || err2 != nil {
			panic("numbers: " + arg)
		}
		for ; a <= b; a++ {
			out = append(out, int32(a))
		}
	}
	return out
}

func (s *script) command(name string, args []string) string {
	if slices.Contains([]string{"compute", "append", "close", "lease"}, name) && s.names[args[0]] == nil {
		return args[0] + " is not open"
	}
	switch name {
	case "new":
		return s.start(args)
	case "open":
		return s.open(args)
	case "compute": // name n: owns blocks for n tokens, writes and commits them
		r := s.names[args[0]]
		if !r.l.Ready() {
			return s.lease(args[0])
		}
		if err := r.l.Extend(option(args, "n", len(r.tokens))); err != nil {
			return err.Error()
		}
		s.write(r, option(args, "n", len(r.tokens)))
		s.retire(r)
		return s.lease(args[0])
	case "append":
		r := s.names[args[0]]
		r.tokens = append(r.tokens, numbers(args[1])...)
		return ""
	case "close":
		r := s.names[args[0]]
		r.l.Close()
		s.live = slices.DeleteFunc(s.live, func(x *runner) bool { return x == r })
		return ""
	case "lease":
		return s.lease(args[0])
	case "done", "fail":
		return s.end(name == "fail", args)
	default:
		return s.ask(name, args)
	}
}

func (s *script) start(args []string) string {
	cfg := Config{Fingerprint: "test", DeviceBlocks: option(args, "device", 8), HostBlocks: option(args, "host", 0)}
	cfg.NoPrefix = slices.Contains(args, "noprefix")
	for p, name := range map[WritePolicy]string{WriteThroughSelective: "selective", WriteBack: "write_back"} {
		if slices.Contains(args, name) {
			cfg.Write = p
		}
	}
	for _, p := range []string{"lfu", "slru"} {
		if slices.Contains(args, p) {
			cfg.Eviction = p
		}
	}
	w, err := newWorld(cfg)
	if err != nil {
		return err.Error()
	}
	s.world = w
	return ""
}

func (s *script) open(args []string) string {
	r := &runner{tokens: numbers(args[1])}
	if len(args) > 2 && strings.HasPrefix(args[2], "salt=") {
		r.salt = args[2]
	}
	var err error
	if r.l, err = s.c.Open(r.salt, r.tokens, option(args, "load", 1<<20)); err != nil {
		return err.Error()
	}
	s.names[args[0]] = r
	s.live = append(s.live, r)
	return s.lease(args[0])
}

func (s *script) lease(name string) string {
	l := s.names[name].l
	text := fmt.Sprintf("%s: hit %d+%d, valid %d in %v", name, l.Hit().Device, l.Hit().Host, l.Valid(), l.Blocks())
	if !l.Ready() {
		text += ", waits"
	}
	return text
}

// end ends moves by their numbers, or all.
func (s *script) end(failed bool, args []string) string {
	var err error
	if failed {
		err = errInjected
	}
	for len(args) == 0 && len(s.flying) > 0 {
		s.land(0, err)
	}
	for _, a := range args {
		i := slices.IndexFunc(s.flying, func(m kv.Move) bool { return fmt.Sprint(m.ID) == a })
		s.land(i, err)
	}
	return ""
}

func (s *script) ask(name string, args []string) string {
	switch name {
	case "lookup":
		h := s.c.Lookup("", numbers(args[0]))
		return fmt.Sprintf("hit %d+%d", h.Device, h.Host)
	case "place":
		to := map[string]Placement{"nowhere": Nowhere, "device": OnlyDevice, "host": OnlyHost}[args[1]]
		if err := s.c.Place("", numbers(args[0]), to); err != nil {
			return err.Error()
		}
		return s.ask("where", args)
	case "where":
		d, h, both, missing := s.c.Residency("", numbers(args[0]))
		return fmt.Sprintf("device %d, host %d, both %d, missing %d", d, h, both, missing)
	case "flush":
		if err := s.c.Flush(); err != nil {
			return err.Error()
		}
		return "empty"
	case "room":
		return fmt.Sprint(s.c.Room())
	case "stats":
		var lines []string
		for t, st := range s.c.Stats() {
			lines = append(lines, fmt.Sprintf("%v: free %d leased %d cached %d; hit %d evicted %d dropped %d loaded %d stored %d failed %d+%d", kv.Tier(t), st.Free,
				st.Leased, st.Cached, st.HitTokens, st.EvictedBlocks, st.DroppedBlocks, st.LoadedBlocks, st.StoredBlocks, st.FailedLoads, st.FailedStores))
		}
		return strings.Join(lines, "\n")
	}
	panic("no command " + name)
}
