package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"larder/internal/loadgen"
	"larder/internal/loadgen/serving"
)

// benchCmd holds the flags of sglang.bench_serving with its names, meanings and defaults, and a few of our own. What
// the reference has and this program does not do is refused by name, never ignored.
type benchCmd struct {
	Backend    string   `default:"sglang" group:"server" help:"sglang, sglang-native, sglang-oai, sglang-oai-chat, vllm, vllm-chat, lmdeploy or lmdeploy-chat."`
	BaseURL    string   `name:"base-url" group:"server" placeholder:"URL" help:"Server's root; overrides --host and --port."`
	Host       string   `default:"0.0.0.0" group:"server" help:"Server's host."`
	Port       int      `group:"server" help:"Server's port (default: the backend's own)."`
	ReadyCheck float64  `name:"ready-check-timeout-sec" default:"60" group:"server" help:"Wait so long for the server; 0: do not ask."`
	Model      string   `group:"server" help:"Model (default: the first that the server lists)."`
	ServedName string   `name:"served-model-name" group:"server" help:"Name to put into requests, if it is another."`
	Header     []string `sep:"none" group:"server" placeholder:"K=V" help:"Extra header; may be repeated."`

	Dataset    string  `name:"dataset-name" default:"sharegpt" group:"workload" help:"sharegpt, custom, random, random-ids, generated-shared-prefix, prefix_repetition, or a trace: mooncake, azure, burstgpt."`
	Path       string  `name:"dataset-path" group:"workload" help:"Data file; nothing is downloaded."`
	Prompts    int     `name:"num-prompts" default:"1000" group:"workload" help:"Requests (generated-shared-prefix: groups times prompts instead)."`
	Tokenizer  string  `group:"workload" placeholder:"PATH" help:"tokenizer.json or its folder (default: the server's, if it is on this machine, else data/tokenizer)."`
	SendIDs    bool    `name:"tokenize-prompt" group:"workload" help:"Send exact token ids instead of text."`
	VocabSize  int     `name:"vocab-size" group:"workload" help:"With --tokenize-prompt and no tokenizer: ids are below this."`
	Suffix     string  `name:"prompt-suffix" group:"workload" help:"Put at the end of sharegpt prompts."`
	GPTOutput  int     `name:"sharegpt-output-len" group:"workload" help:"Fixed output length for sharegpt."`
	GPTContext int     `name:"sharegpt-context-len" group:"workload" help:"Drop longer sharegpt pairs."`
	RandIn     int     `name:"random-input-len" default:"1024" group:"workload" help:"Longest input of random data sets."`
	RandOut    int     `name:"random-output-len" default:"1024" group:"workload" help:"Longest output of random data sets."`
	RandRange  float64 `name:"random-range-ratio" default:"0" group:"workload" help:"Lengths are uniform from this share of the longest up to it; 1: all the longest."`

	GSPGroups   int     `name:"gsp-num-groups" default:"64" group:"workload" help:"Shared prefixes."`
	GSPPrompts  int     `name:"gsp-prompts-per-group" default:"16" group:"workload" help:"Prompts with each."`
	GSPSystem   int     `name:"gsp-system-prompt-len" default:"2048" group:"workload" help:"Tokens of a shared prefix."`
	GSPQuestion int     `name:"gsp-question-len" default:"128" group:"workload" help:"Tokens of a prompt's own part."`
	GSPOutput   int     `name:"gsp-output-len" default:"256" group:"workload" help:"Output tokens."`
	GSPRange    float64 `name:"gsp-range-ratio" default:"1" group:"workload" help:"As --random-range-ratio."`
	GSPFast     bool    `name:"gsp-fast-prepare" group:"workload" help:"Do not count the prompts' tokens (they are reported as 1)."`
	GSPRouting  bool    `name:"gsp-send-routing-key" group:"workload" help:"Send a routing key for each group."`
	GSPTurns    int     `name:"gsp-num-turns" default:"1" group:"workload" help:"Turns; only 1 is supported."`
	GSPOrdered  bool    `name:"gsp-ordered" group:"workload" help:"Keep group after group."`
	GSPDist     string  `name:"gsp-group-distribution" enum:"uniform,zipf" default:"uniform" group:"workload" help:"uniform or zipf."`
	GSPZipf     float64 `name:"gsp-zipf-alpha" group:"workload" help:"For zipf."`

	RepPrefix   int     `name:"prefix-repetition-prefix-len" default:"256" group:"workload" help:"prefix_repetition (as vllm bench): tokens of a prefix."`
	RepSuffix   int     `name:"prefix-repetition-suffix-len" default:"256" group:"workload" help:"Tokens of a prompt's own part."`
	RepPrefixes int     `name:"prefix-repetition-num-prefixes" default:"10" group:"workload" help:"Prefixes."`
	RepOutput   int     `name:"prefix-repetition-output-len" default:"128" group:"workload" help:"Output tokens."`
	Slowdown    float64 `name:"mooncake-slowdown-factor" default:"1" group:"workload" help:"Factor on the times of any trace."`
	Rounds      int     `name:"mooncake-num-rounds" default:"1" group:"workload" help:"Only 1 is supported."`
	Timestamps  bool    `name:"use-trace-timestamps" group:"workload" help:"Traces always keep their times; here for compatibility."`
	Salt        uint64  `group:"workload" help:"Which tokens traces and prefix_repetition are made of (0: new ones each run, so that no earlier run has cached them)."`

	Rate        float64 `name:"request-rate" default:"inf" group:"load" help:"Requests per second as a Poisson process; inf: all at once."`
	Burstiness  float64 `default:"1" group:"load" help:"Shape of gamma intervals, as vllm bench: 1 Poisson, below 1 burstier, above 1 smoother."`
	Constant    bool    `name:"constant-rate" group:"load" help:"Equal intervals instead of random ones."`
	Ramp        string  `name:"ramp-up-strategy" enum:"none,linear,exponential" default:"none" group:"load" help:"Let the rate go from one value to another over the requests."`
	RampFrom    float64 `name:"ramp-up-start-rps" group:"load" help:"Rate of the first request of a ramp."`
	RampTo      float64 `name:"ramp-up-end-rps" group:"load" help:"Rate of the last request of a ramp."`
	Concurrency int     `name:"max-concurrency" group:"load" help:"Most requests in flight (0: no limit)."`
	Seed        uint64  `default:"42" group:"load" help:"Seed of lengths, prompts and arrivals."`
	Warmups     int     `name:"warmup-requests" default:"1" group:"load" help:"Requests before the measured ones, with prompts of their own."`
	WarmupFirst bool    `name:"warmup-measured-prompt" group:"load" help:"Warm up with the first measured prompt, as the reference does (it stays cached)."`
	Flush       bool    `name:"flush-cache" group:"load" help:"Empty the server's cache after the warm-up."`
	FlushWait   float64 `name:"flush-cache-timeout" default:"60" group:"load" help:"Seconds that SGLang may wait for its own quiet."`
	Prime       bool    `group:"load" help:"With prefix_repetition: send each prefix once before the run, so that it can be hit."`
	Cold        bool    `group:"load" help:"Fail (code 3) unless the server reports that less than 1 % of the prompt tokens were cached."`
	Settle      float64 `name:"settle" default:"1" group:"load" help:"Seconds of quiet after warm-up and flush (the reference's: 1)."`

	SelfCheck bool `name:"self-check" group:"load" help:"First measure what this client can take, against a mock server in this process."`

	NoStream    bool     `name:"disable-stream" group:"request" help:"Ask for whole answers."`
	NoIgnoreEOS bool     `name:"disable-ignore-eos" group:"request" help:"Let answers end early."`
	Temperature float64  `default:"0" group:"request" help:"Sampling temperature."`
	TopP        float64  `name:"top-p" default:"1" group:"request" help:"Sampling top-p; sent when below 1."`
	Extra       string   `name:"extra-request-body" group:"request" placeholder:"JSON" help:"Object merged into every body."`
	NoUsage     bool     `name:"no-usage" group:"request" help:"Do not ask OpenAI servers for token counts in streams."`
	Logprob     bool     `name:"return-logprob" group:"request" help:"Ask for log probabilities."`
	TopLogprobs int      `name:"top-logprobs-num" group:"request" help:"How many at each place."`
	IDsLogprob  []int    `name:"token-ids-logprob" group:"request" help:"Of these ids."`
	LogprobFrom int      `name:"logprob-start-len" default:"-1" group:"request" help:"From this prompt token on."`
	Experts     bool     `name:"return-routed-experts" group:"request" help:"Ask for routed experts."`
	FakePrefill bool     `name:"fake-prefill" group:"request" help:"Decode only (SGLang's disaggregated test mode)."`
	LoRA        []string `name:"lora-name" group:"request" help:"LoRA adapter names."`
	LoRADist    string   `name:"lora-request-distribution" enum:"uniform,distinct,skewed" default:"uniform" group:"request" help:"How requests choose among them."`
	LoRAAlpha   float64  `name:"lora-zipf-alpha" default:"1.5" group:"request" help:"For skewed; above 1."`

	ConnectLimit time.Duration `name:"timeout-connect" default:"10s" group:"limits" help:"To connect."`
	FirstLimit   time.Duration `name:"timeout-first" default:"10m" group:"limits" help:"From send to first token."`
	GapLimit     time.Duration `name:"timeout-gap" default:"2m" group:"limits" help:"Between tokens."`
	TotalLimit   time.Duration `name:"timeout-total" default:"0s" group:"limits" help:"For the whole request (0: none)."`

	Style        string   `name:"report-style" enum:"seed,0.5.4,0.5.6,head,vllm" default:"seed" group:"report" help:"Form of the block: the document's, or that of a release."`
	NoExtra      bool     `name:"no-extra" group:"report" help:"Leave out the section after the block."`
	Output       string   `name:"output-file" group:"report" help:"JSONL file to append to (default: the reference's name; none: no file)."`
	Details      bool     `name:"output-details" group:"report" help:"Add per-request lists to the JSON line."`
	BareInfinity bool     `name:"bare-infinity" group:"report" help:"Write an infinite rate as Infinity, as the reference does; not valid JSON."`
	Goodput      []string `sep:"none" group:"report" placeholder:"METRIC:MS" help:"Latency limits, such as ttft:500 tpot:50 e2el:2000."`
	CacheReport  bool     `name:"cache-report" group:"report" help:"Add the reference's cache report to the JSON line."`
	Requests     string   `name:"output-requests" group:"report" placeholder:"FILE" help:"Append every request, one JSON line each: for larder bench compare."`
	CSV          string   `name:"output-csv" group:"report" placeholder:"FILE" help:"Write one row for each request."`
	Page         string   `name:"output-html" group:"report" placeholder:"FILE" help:"Write one page with charts that needs no network."`
	Tag          string   `group:"report" help:"Copied into the JSON line."`
	NoMetrics    bool     `name:"no-metrics" group:"report" help:"Do not read the server's /metrics before, during and after the run."`
	Quiet        bool     `name:"disable-tqdm" group:"report" help:"No progress."`

	Refused benchRefused `embed:"" group:"refused"`
}

// benchRefused are the reference's flags for things that this program does not do. They are known, so that their use
// is answered with a reason and prefixes of flags stay ambiguous where they are in the reference.
type benchRefused struct {
	PrintRequests bool     `name:"print-requests" hidden:""`
	ChatTemplate  bool     `name:"apply-chat-template" hidden:""`
	Plot          bool     `name:"plot-throughput" hidden:""`
	Profile       bool     `name:"profile" hidden:""`
	PDSeparated   bool     `name:"pd-separated" hidden:""`
	PDPrefill     []string `name:"profile-prefill-url" hidden:""`
	PDDecode      []string `name:"profile-decode-url" hidden:""`
	Activities    []string `name:"profile-activities" hidden:""`
	StartStep     *int     `name:"profile-start-step" hidden:""`
	Steps         *int     `name:"profile-steps" hidden:""`
	NumSteps      *int     `name:"profile-num-steps" hidden:""`
	ByStage       bool     `name:"profile-by-stage" hidden:""`
	Stages        []string `name:"profile-stages" hidden:""`
	ProfileDir    string   `name:"profile-output-dir" hidden:""`
	ProfilePrefix string   `name:"profile-prefix" hidden:""`
	Images        *int     `name:"image-count" hidden:""`
	ImageRes      string   `name:"image-resolution" hidden:""`
	ImageRandom   bool     `name:"random-image-count" hidden:""`
	ImageFormat   string   `name:"image-format" hidden:""`
	ImageContent  string   `name:"image-content" hidden:""`
	Mooncake      string   `name:"mooncake-workload" hidden:""`
	Offset        *int     `name:"dataset-offset" hidden:""`
	AgenticTurns  *int     `name:"agentic-max-turns" hidden:""`
	SpeedCategory string   `name:"speed-bench-category" hidden:""`
	SpeedOutput   *int     `name:"speed-bench-output-len" hidden:""`
}

// benchMain runs the subcommand: it parses argparse's way, runs, and returns the exit code.
func benchMain(args []string, stdout, stderr io.Writer) int {
	ctx, stop := interruptible(stderr)
	defer stop()
	c, code, err := parseBench(args, stdout, stderr)
	if err == nil && code < 0 {
		err = c.run(ctx, &streams{stdout, stderr})
		code = exitOK
	}
	if err != nil {
		return exitCode(err, stderr)
	}
	return code
}

// parseBench reads the flags. A code of 0 or more says that all is done: help was printed.
func parseBench(args []string, stdout, stderr io.Writer) (c *benchCmd, code int, err error) {
	c, code = &benchCmd{}, -1
	parser, err := kong.New(c, kong.Name("larder bench"),
		kong.Description("Benchmark any SGLang-, vLLM- or OpenAI-compatible server, with the flags of sglang.bench_serving."),
		kong.Writers(stdout, stderr), kong.Exit(func(n int) { code = n }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 120}),
		kong.ValueFormatter(withChoices),
		kong.ExplicitGroups([]kong.Group{{Key: "server", Title: "Server"}, {Key: "workload", Title: "Workload"}, {Key: "load", Title: "Load"},
			{Key: "request", Title: "Requests"}, {Key: "limits", Title: "Time limits (negative: none)"}, {Key: "report", Title: "Report"}}))
	if err != nil {
		panic(err) // a malformed flag definition: a broken build, not bad input
	}
	args, err = expandFlags(parser.Model.Flags, args)
	if err == nil {
		_, err = parser.Parse(args)
	}
	if code >= 0 {
		return c, code, nil
	}
	if err == nil {
		err = c.validate()
	}
	if err != nil {
		return nil, -1, usageError{err}
	}
	return c, -1, nil
}

// benchDatasets are the supported data sets; benchTraces those that have their own times.
var (
	benchDatasets = []string{"sharegpt", "custom", "random", "random-ids", "generated-shared-prefix", "prefix_repetition", "mooncake", "azure", "burstgpt"}
	benchTraces   = []string{"mooncake", "azure", "burstgpt"}
)

func (c *benchCmd) trace() bool { return slices.Contains(benchTraces, c.Dataset) }

// validate reports what contradicts itself or is not done here.
func (c *benchCmd) validate() error {
	if err := c.Refused.check(); err != nil {
		return err
	}
	switch {
	case !slices.Contains(loadgen.Backends(), c.Backend):
		return fmt.Errorf("--backend %s is not supported; supported: %s", c.Backend, strings.Join(loadgen.Backends(), ", "))
	case !slices.Contains(benchDatasets, c.Dataset):
		return fmt.Errorf("--dataset-name %s is not supported; supported: %s", c.Dataset, strings.Join(benchDatasets, ", "))
	case !(c.Rate > 0):
		return fmt.Errorf("--request-rate %v must be above 0 (or inf)", c.Rate)
	case (c.Ramp == "none") != (c.RampFrom == 0 && c.RampTo == 0):
		return errors.New("--ramp-up-strategy goes with --ramp-up-start-rps and --ramp-up-end-rps")
	case c.Ramp != "none" && !math.IsInf(c.Rate, 1):
		return errors.New("--request-rate and --ramp-up-strategy exclude each other")
	case c.Concurrency < 0 || c.Warmups < 0:
		return errors.New("--max-concurrency and --warmup-requests must not be negative")
	case c.Prompts < 1:
		return fmt.Errorf("--num-prompts %d must be at least 1", c.Prompts)
	case !(c.FlushWait > 0) || math.IsInf(c.FlushWait, 0):
		return fmt.Errorf("--flush-cache-timeout %v must be a finite number above 0", c.FlushWait)
	case !(c.ReadyCheck >= 0 && c.ReadyCheck < 1e9) || !(c.Settle >= 0 && c.Settle < 1e9):
		return errors.New("--ready-check-timeout-sec and --settle must be numbers of seconds, 0 or more")
	case math.IsNaN(c.Temperature) || c.Temperature < 0 || !(c.TopP > 0 && c.TopP <= 1):
		return errors.New("--temperature must not be negative and --top-p must be above 0 and at most 1")
	case c.Port < 0 || c.Port > 65535:
		return fmt.Errorf("--port %d is not a port", c.Port)
	}
	return c.validateWorkload()
}

func (c *benchCmd) validateWorkload() error {
	chat := strings.HasSuffix(c.Backend, "-chat")
	switch {
	case c.GSPTurns != 1:
		return errors.New("--gsp-num-turns: only one turn is supported")
	case c.GSPDist == "zipf" && !(c.GSPZipf > 0):
		return errors.New("--gsp-group-distribution zipf needs --gsp-zipf-alpha above 0")
	case c.GSPDist != "zipf" && c.GSPZipf != 0:
		return errors.New("--gsp-zipf-alpha needs --gsp-group-distribution zipf")
	case c.SendIDs && chat:
		return fmt.Errorf("--tokenize-prompt: the backend %s takes messages, not token ids", c.Backend)
	case c.SendIDs && (c.Dataset == "sharegpt" || c.Dataset == "custom"):
		return fmt.Errorf("--tokenize-prompt does not go with --dataset-name %s", c.Dataset)
	case c.Prime && c.Dataset != "prefix_repetition":
		return errors.New("--prime goes with --dataset-name prefix_repetition")
	case c.Prime && c.Cold:
		return errors.New("--prime and --cold exclude each other")
	case c.Rounds != 1:
		return errors.New("--mooncake-num-rounds: only one round is supported")
	case c.Timestamps && !c.trace():
		return fmt.Errorf("--use-trace-timestamps: %s has no timestamps; traces are %s", c.Dataset, strings.Join(benchTraces, ", "))
	case c.trace() && (!math.IsInf(c.Rate, 1) || c.Ramp != "none" || c.Constant || c.Burstiness != 1):
		return errors.New("a trace has its own times: no --request-rate, --burstiness, --constant-rate or ramp")
	case c.VocabSize != 0 && (!c.SendIDs || c.Tokenizer != ""):
		return errors.New("--vocab-size goes with --tokenize-prompt and without --tokenizer")
	case c.CacheReport && !strings.HasPrefix(c.Backend, "sglang"):
		return errors.New("--cache-report goes with the sglang backends")
	}
	if err := c.arrival().Validate(); err != nil {
		return err
	}
	_, err := c.objectives()
	return err
}

// check refuses the first flag in use.
func (r *benchRefused) check() error {
	for _, f := range []struct {
		on        bool
		name, why string
	}{
		{r.PrintRequests, "--print-requests", "requests are not printed; use --output-details"},
		{r.ChatTemplate, "--apply-chat-template", "use a chat backend, so that the server applies its own"},
		{r.Plot, "--plot-throughput", "there are no terminal plots"},
		{r.Profile || r.ByStage || r.PDSeparated || len(r.PDPrefill)+len(r.PDDecode)+len(r.Activities)+len(r.Stages) > 0 ||
			r.StartStep != nil || r.Steps != nil || r.NumSteps != nil || r.ProfileDir+r.ProfilePrefix != "", "--profile and its options", "server profiling is not supported"},
		{r.Images != nil || r.ImageRandom || r.ImageRes+r.ImageFormat+r.ImageContent != "", "the image options", "this is a benchmark for text"},
		{r.Mooncake != "", "--mooncake-workload", "nothing is downloaded; give the trace's file with --dataset-path"},
		{r.Offset != nil || r.AgenticTurns != nil || r.SpeedCategory != "" || r.SpeedOutput != nil, "the agentic-trace and speed-bench options", "the data sets are not supported"},
	} {
		if f.on {
			return fmt.Errorf("%s: %s", f.name, f.why)
		}
	}
	return nil
}

// objectives reads --goodput.
func (c *benchCmd) objectives() ([]serving.Objective, error) {
	var out []serving.Objective
	for _, text := range c.Goodput {
		var o serving.Objective
		name, limit, ok := strings.Cut(text, ":")
		if _, err := fmt.Sscanf(limit, "%g", &o.Limit); err != nil || !ok {
			return nil, fmt.Errorf("--goodput %q must be METRIC:MS, such as ttft:500", text)
		}
		o.Metric = name
		if err := o.Validate(); err != nil {
			return nil, fmt.Errorf("--goodput: %w", err)
		}
		out = append(out, o)
	}
	return out, nil
}

// outputName is the file for the JSON line: as asked, or as the reference names it; "" for none.
func (c *benchCmd) outputName(now time.Time) string {
	day := now.Format("0102")
	switch {
	case c.Output == "none":
		return ""
	case c.Output != "":
		return c.Output
	case strings.HasPrefix(c.Dataset, "random"):
		return fmt.Sprintf("%s_%s_%d_%d_%d.jsonl", c.Backend, day, c.Prompts, c.RandIn, c.RandOut)
	}
	return fmt.Sprintf("%s_%s_%d_%s.jsonl", c.Backend, day, c.Prompts, c.Dataset)
}

// checkOutput finds out before the run that a file could not be written.
func (c *benchCmd) checkOutput() error {
	for flag, name := range c.outputs() {
		if err := checkFolder(flag, name); err != nil {
			return err
		}
	}
	name := c.outputName(time.Now())
	if name == "" {
		return nil
	}
	return checkFolder("--output-file", name)
}

// appendLine adds one JSON line to the output file.
func (c *benchCmd) appendLine(m *serving.Metrics, all []loadgen.Outcome, r serving.Run) (err error) {
	name := c.outputName(time.Now())
	if name == "" {
		return nil
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return serving.Line(f, m, all, r)
}
