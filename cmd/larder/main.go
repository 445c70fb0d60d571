// Command larder is an LLM server and test bench that tells people where their KV cache should live. This package
// owns flags, wiring, signals and exit codes; it is the only place that names concrete devices. What the subcommands
// do lives below internal/.
//
// Start at commands; each subcommand has a file of its own.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

// version is set by the linker.
var version = "unknown"

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // the job failed; what was measured is kept
	exitUsage  = 2 // a flag, a file or the machine makes the job impossible; nothing was started
	exitChecks = 3 // the job ran and one of its own checks failed
)

// usageError marks an error that the user can mend on the command line.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// checksError marks a run whose own checks failed.
type checksError struct{ error }

// streams are where a command writes.
type streams struct{ out, err io.Writer }

// commands is the whole command line. bench is parsed apart, because its flags follow another program's rules.
type commands struct {
	Study   studyCmd   `cmd:"" help:"Compare recompute, host memory and HBM on one workload: table, proof and page."`
	Serve   serveCmd   `cmd:"" help:"Serve a Qwen3 model over HTTP (SGLang's native API and OpenAI's)."`
	Bench   struct{}   `cmd:"" help:"Benchmark any SGLang-, vLLM- or OpenAI-compatible server; flags as sglang.bench_serving."`
	Kvbench kvbenchCmd `cmd:"" help:"Measure loading and storing KV blocks between two tiers."`
	Doctor  doctorCmd  `cmd:"" help:"Say what is on this machine and what that means for a run."`
	Version versionCmd `cmd:"" help:"Print the version."`
}

type versionCmd struct{}

func (versionCmd) Run(s *streams) error {
	_, err := fmt.Fprintln(s.out, "larder", version)
	return err
}

func main() {
	os.Exit(run(os.Args[1:], &streams{os.Stdout, os.Stderr}))
}

// run is main without the process: it parses, runs and maps errors to exit codes.
func run(args []string, s *streams) int {
	if len(args) > 0 && args[0] == "bench" {
		return benchMain(args[1:], s.out, s.err)
	}
	ctx, stop := interruptible(s.err)
	defer stop()

	var cli commands
	code := -1
	parser, err := kong.New(&cli,
		kong.Name("larder"),
		kong.Description("Where should your KV cache live? Recompute it, load it from host memory, or keep it in HBM."),
		kong.Writers(s.out, s.err),
		kong.Exit(func(c int) { code = c }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 120}),
		kong.ValueFormatter(withChoices),
		kong.BindTo(ctx, (*context.Context)(nil)),
	)
	if err != nil {
		panic(err) // a malformed flag definition: a broken build, not bad input
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if code >= 0 { // help was printed
		return code
	}
	if err != nil {
		fmt.Fprintf(s.err, "larder: %v\n", err)
		return exitUsage
	}
	return exitCode(parsed.Run(s), s.err)
}

// exitCode prints what there is to say about err, in one line, and picks the code.
func exitCode(err error, w io.Writer) int {
	var usage usageError
	var checks checksError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(w, "larder: interrupted")
		return exitFailed
	case errors.As(err, &usage):
		fmt.Fprintf(w, "larder: %v\n", err)
		return exitUsage
	case errors.As(err, &checks):
		fmt.Fprintf(w, "larder: %v\n", err)
		return exitChecks
	}
	fmt.Fprintf(w, "larder: %v\n", err)
	return exitFailed
}

// interruptible is a context that the first SIGINT or SIGTERM cancels; the second ends the process at once.
func interruptible(w io.Writer) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		select {
		case <-done:
			return
		case sig := <-signals:
			fmt.Fprintf(w, "larder: %v: finishing (once more ends at once)\n", sig)
			cancel()
		}
		select {
		case <-done:
		case <-signals:
			os.Exit(exitFailed)
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}
