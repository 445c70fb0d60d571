package main

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestReadmeCommands runs every ```sh block of README.md as a user would, each in a shell of its own, in the
// repository's root. It needs a built binary, free ports and minutes, so `make readme` asks for it.
func TestReadmeCommands(t *testing.T) {
	if os.Getenv("LARDER_README") == "" {
		t.Skip("set LARDER_README=1 (make readme) to run the README's commands")
	}
	top := moduleRoot(t)
	text, err := os.ReadFile(filepath.Join(top, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```sh\n(.*?)^```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) < 3 {
		t.Fatalf("README.md has %d sh blocks: the newcomer's commands are gone", len(blocks))
	}
	for _, b := range blocks {
		script := b[1]
		if strings.Contains(script, "make test") || strings.Contains(script, "git clone") {
			continue // this very run, and the checkout that it runs in
		}
		name, _, _ := strings.Cut(script, "\n")
		t.Run(name, func(t *testing.T) { runScript(t, top, script) })
	}
}

// runScript runs a block and ends whatever it left running, servers included.
func runScript(t *testing.T, dir, script string) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := os.CreateTemp(t.TempDir(), "out") // a file, so that a server left behind does not hold a pipe open
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) // fails when nothing is left, which is well
	}
	text, _ := os.ReadFile(out.Name())
	if err != nil {
		t.Fatalf("%v\n%s\n---\n%s", err, script, text)
	}
	t.Logf("%s", text)
}

// TestMarkdownLinks follows every relative link of every page.
func TestMarkdownLinks(t *testing.T) {
	top := moduleRoot(t)
	link := regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`)
	pages := 0
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") || d.Name() == "data" || d.Name() == "out") && path != top {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		pages++
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), m[1])); err != nil {
				t.Errorf("%s links to %s, which does not exist", path, m[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if pages < 2 {
		t.Fatalf("found %d pages: the walk is broken", pages)
	}
}

func moduleRoot(t *testing.T) string {
	t.Helper()
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(top, "go.mod")); err != nil {
		t.Fatal(err)
	}
	return top
}
