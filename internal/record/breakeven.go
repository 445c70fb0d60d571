package record

// BreakEven says from where on loading beats recomputing, and how far the model behind it can be trusted.
type BreakEven struct {
	Formula       string  `json:"formula"`
	RecomputePerS Number  `json:"recompute_tok_per_s"` // R: prefix tokens a second, measured as recompute - hbm
	LoadBytesPerS Number  `json:"load_bytes_per_s"`    // B: host to device, as served
	LoadFixedMS   Number  `json:"load_fixed_ms"`       // t0: what a load costs whatever its size
	NeedBytesPerS Number  `json:"need_bytes_per_s"`    // B*: bandwidth at which loading and recomputing tie
	Margin        Number  `json:"margin"`              // B / B*
	PrefixTokens  Number  `json:"prefix_tokens"`       // n*: shortest prefix worth loading
	HitRate       Number  `json:"hit_rate"`            // n* / input_len
	Batch         Number  `json:"batch"`               // smallest measured batch from which on loading wins at every measured one
	LoadSource    string  `json:"load_source"`         // where B and t0 come from
	Fit           Fit     `json:"fit"`
	Curve         []Point `json:"curve"`
	Measured      []Point `json:"measured"`
	Map           []Cell  `json:"map"`
	Verdict       string  `json:"verdict"`

	Why map[string]string `json:"why,omitempty"`
}

// Fit is the model duration = fixed + s_per_request*requests + s_per_tflop*computed + s_per_gib*loaded, fitted to the
// study's own bursts by relative error, no coefficient negative.
type Fit struct {
	Points      int          `json:"points"`
	FixedS      Number       `json:"fixed_s"`
	SPerRequest Number       `json:"s_per_request"`
	SPerTFLOP   Number       `json:"s_per_tflop"`
	SPerGiB     Number       `json:"s_per_gib"`
	MeanError   Number       `json:"held_out_mean_error"` // mean of |predicted/measured - 1| over the held-out predictions
	MaxError    Number       `json:"held_out_max_error"`
	HeldOut     []Prediction `json:"held_out"`

	Why map[string]string `json:"why,omitempty"`
}

// Prediction is a burst that the fit had not seen.
type Prediction struct {
	What       string  `json:"what"`
	Arm        string  `json:"arm"`
	Batch      int     `json:"batch"`
	SharedLen  int     `json:"shared_len"`
	PredictedS float64 `json:"predicted_s"`
	MeasuredS  float64 `json:"measured_s"`
	Error      float64 `json:"error"` // predicted/measured - 1
}

// Point is one prefix length of the break-even curve: what having its KV costs one request in each arm.
type Point struct {
	PrefixTokens int    `json:"prefix_tokens"`
	RecomputeMS  Number `json:"recompute_ms"`
	LoadMS       Number `json:"load_ms"`
	Reason       string `json:"reason,omitempty"`
}

// Cell is what the fitted model predicts for one hit rate and batch size at the study's input length.
type Cell struct {
	HitRate    float64 `json:"hit_rate"` // in whole blocks
	Batch      int     `json:"batch"`
	RecomputeS float64 `json:"recompute_s"`
	HostS      float64 `json:"host_s"` // loads first, one after another, then compute: nothing overlaps
	HBMS       float64 `json:"hbm_s"`
}
