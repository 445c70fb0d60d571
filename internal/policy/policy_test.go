package policy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "larder"

// source is one parsed non-test Go file of the module.
type source struct {
	path string // from the module's root, with slashes
	file *ast.File
	fset *token.FileSet
}

func (s source) dir() string { return filepath.ToSlash(filepath.Dir(s.path)) }

// rel is the package's path below internal/, or "" for others.
func (s source) rel() string {
	r, ok := strings.CutPrefix(s.dir(), "internal/")
	if !ok {
		return ""
	}
	return r
}

func (s source) lines(n ast.Node) int {
	return s.fset.Position(n.End()).Line - s.fset.Position(n.Pos()).Line + 1
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func sources(t *testing.T) []source {
	t.Helper()
	top := root(t)
	var all []source
	fset := token.NewFileSet()
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && path != top || d.Name() == "bin" || d.Name() == "data") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(top, path)
		if err != nil {
			return err
		}
		all = append(all, source{filepath.ToSlash(rel), f, fset})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 30 {
		t.Fatalf("found only %d source files below %s: the walk is broken", len(all), top)
	}
	return all
}

func TestImports(t *testing.T) {
	for _, s := range sources(t) {
		rel := s.rel()
		if rel == "" {
			continue
		}
		allowed, known := allowedFor(rel)
		if !known {
			t.Errorf("%s: package internal/%s is not in the import table", s.path, rel)
			continue
		}
		for _, imp := range s.file.Imports {
			path, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if to, ok := strings.CutPrefix(path, module+"/internal/"); ok && !allows(allowed, to) {
				t.Errorf("%s: internal/%s may not import internal/%s", s.path, rel, to)
			}
		}
	}
}

// allowedFor finds the entry of a package; subpackages of an entry that allows itself ("x/...") share it.
func allowedFor(rel string) ([]string, bool) {
	if a, ok := Imports[rel]; ok {
		return a, true
	}
	for p := rel; strings.Contains(p, "/"); {
		p = p[:strings.LastIndex(p, "/")]
		if a, ok := Imports[p]; ok && (slices.Contains(a, p+"/...") || p == "loadgen" || p == "model") {
			return append(slices.Clone(a), p, p+"/..."), true
		}
	}
	return nil, false
}

func allows(allowed []string, to string) bool {
	for _, a := range allowed {
		if tree, ok := strings.CutSuffix(a, "/..."); ok && strings.HasPrefix(to, tree+"/") {
			return true
		}
		if a == to {
			return true
		}
	}
	return false
}

func TestDecidersArePure(t *testing.T) {
	forbidden := map[string]bool{"os": true, "net": true, "net/http": true, "sync": true, "math/rand": true, "math/rand/v2": true, "io/fs": true, "context": true}
	for _, s := range sources(t) {
		if !slices.Contains(Deciders, s.rel()) {
			continue
		}
		for _, imp := range s.file.Imports {
			path, _ := strconv.Unquote(imp.Path.Value)
			if forbidden[path] && !(path == "sync" && s.rel() == "sample") {
				t.Errorf("%s: a decider may not import %s", s.path, path)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: a decider may not start a goroutine", s.fset.Position(n.Pos()))
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && (n.Sel.Name == "Now" || n.Sel.Name == "Since") {
					t.Errorf("%s: a decider may not read the clock", s.fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

func TestPackageComments(t *testing.T) {
	documented := map[string]bool{}
	for _, s := range sources(t) {
		ok := s.file.Doc != nil && len(s.file.Doc.Text()) >= 60
		documented[s.dir()] = documented[s.dir()] || ok
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("%s: no package comment that says what the package owns", dir)
		}
	}
}

func TestBudgets(t *testing.T) {
	for _, s := range sources(t) {
		if ast.IsGenerated(s.file) {
			continue
		}
		if n := s.fset.Position(s.file.End()).Line; n > MaxFileLines {
			t.Errorf("%s: %d lines, %d allowed", s.path, n, MaxFileLines)
		}
		if slices.Contains(BadNames, s.file.Name.Name) {
			t.Errorf("%s: package name %q names no noun", s.path, s.file.Name.Name)
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if l := s.lines(n); l > MaxFuncLines {
					t.Errorf("%s: %s has %d lines, %d allowed", s.path, n.Name.Name, l, MaxFuncLines)
				}
				if n.Name.Name == "init" && n.Recv == nil {
					t.Errorf("%s: init functions hide order", s.fset.Position(n.Pos()))
				}
			case *ast.InterfaceType:
				if w := n.Methods.NumFields(); w > MaxInterfaceWidth {
					t.Errorf("%s: interface of %d methods, %d allowed", s.fset.Position(n.Pos()), w, MaxInterfaceWidth)
				}
			}
			return true
		})
	}
}

// TestArchitectureNamesRealFiles follows every `path/file.go` in the two front pages.
func TestArchitectureNamesRealFiles(t *testing.T) {
	top := root(t)
	for _, page := range []string{"ARCHITECTURE.md", "README.md"} {
		text, err := os.ReadFile(filepath.Join(top, page))
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range strings.FieldsFunc(string(text), func(r rune) bool { return strings.ContainsRune(" \n\t`()[],;:|", r) }) {
			if !strings.Contains(word, "/") || strings.Contains(word, "//") || strings.ContainsAny(word, "*{<$") {
				continue
			}
			switch filepath.Ext(word) {
			case ".go", ".md", ".py", ".sh", ".svg", ".png":
				if _, err := os.Stat(filepath.Join(top, word)); err != nil {
					t.Errorf("%s names %s, which does not exist", page, word)
				}
			}
		}
	}
}

// TestRulesFire proves that the table refuses what it should.
func TestRulesFire(t *testing.T) {
	a, ok := allowedFor("kv/cache")
	if !ok || allows(a, "engine") || !allows(a, "kv/pool") {
		t.Errorf("kv/cache: allowed %v", a)
	}
	if _, ok := allowedFor("nowhere/else"); ok {
		t.Error("an unknown package was found in the table")
	}
	if a, ok := allowedFor("device/cpu/gemm"); !ok || !allows(a, "device/cpu/gemm/gen") || allows(a, "engine") {
		t.Errorf("device/cpu/gemm: allowed %v", a)
	}
}
