package main

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"larder": func() { os.Exit(run(os.Args[1:], &streams{os.Stdout, os.Stderr})) },
	})
}

// TestScripts runs the command line as users type it; testdata/script holds what must come out.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits,
		},
	})
}

// exits CODE COMMAND...: the command must end with exactly that code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits code command...")
	}
	err := ts.Exec("sh", append([]string{"-c", `want=$1; shift; "$@"; got=$?; [ "$got" = "$want" ] || { echo "exit code $got, want $want" >&2; exit 1; }; exit 0`, "sh"}, args...)...)
	if err != nil {
		ts.Fatalf("%v: %v", args, err)
	}
}
