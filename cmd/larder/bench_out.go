package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"larder/internal/loadgen"
	"larder/internal/loadgen/scrape"
	"larder/internal/loadgen/serving"
	"larder/internal/report"
	"larder/internal/runlog"
	"larder/internal/workload"
)

// benchResult is what a run brought, before it is reduced to numbers.
type benchResult struct {
	res    *loadgen.Result
	server *scrape.Report // nil: not asked
	model  string
}

// watched measures while the server's own counters are read beside it.
func (c *benchCmd) watched(ctx context.Context, cfg loadgen.Config, items []workload.Item, log io.Writer) (*loadgen.Result, *scrape.Report, error) {
	if c.NoMetrics {
		res, err := c.measure(ctx, cfg, items, log)
		return res, nil, err
	}
	end := scrape.New(cfg.BaseURL, cfg.Header)
	defer end.Close()
	watch := scrape.Begin(ctx, end)
	res, err := c.measure(ctx, cfg, items, log)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	counted := watch.End(last)
	return res, &counted, err
}

// outputs are the files of single requests that were asked for, by flag.
func (c *benchCmd) outputs() map[string]string {
	files := map[string]string{}
	for flag, name := range map[string]string{"--output-requests": c.Requests, "--output-csv": c.CSV, "--output-html": c.Page} {
		if name != "" {
			files[flag] = name
		}
	}
	return files
}

// checkFolder finds out before a run that a file could not be written.
func checkFolder(flag, name string) error {
	if info, err := os.Stat(filepath.Dir(name)); err != nil || !info.IsDir() {
		return usagef("%s %s: there is no folder %s", flag, name, filepath.Dir(name))
	}
	return nil
}

// writeRequests writes the files of single requests.
func (c *benchCmd) writeRequests(m *serving.Metrics, got *benchResult, s *streams) error {
	if len(c.outputs()) == 0 {
		return nil
	}
	run := serving.Log(m, got.res, runlog.Run{Tool: "larder " + version, Model: got.model, Dataset: c.Dataset, Seed: c.Seed, Tag: c.Tag})
	if c.Requests != "" {
		if err := appendRun(c.Requests, run); err != nil {
			return err
		}
	}
	if c.CSV != "" {
		if err := writeFile(c.CSV, func(f *os.File) error { return runlog.CSV(f, run) }); err != nil {
			return err
		}
	}
	if c.Page != "" {
		if err := writeFile(c.Page, func(f *os.File) error { return report.Bench(f, run) }); err != nil {
			return err
		}
		fmt.Fprintln(s.err, c.Page)
	}
	return nil
}

// appendRun adds a run to a request log.
func appendRun(name string, run *runlog.Run) (err error) {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return runlog.Write(f, run)
}
