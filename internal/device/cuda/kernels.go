package cuda

import (
	"embed"
	"fmt"
	"path"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"unsafe"
)

//go:embed kernels
var files embed.FS

// source is one file of kernels.
type source struct{ name, text string }

// headers are what sources include.
func headers() []source { return list(".cuh") }

func mustRead(name string) string {
	text, err := files.ReadFile(name)
	if err != nil {
		panic(err) // embedded: it is there
	}
	return string(text)
}

// sources are all files of kernels, by name.
func sources() []source { return list(".cu") }

func list(ext string) []source {
	found, err := files.ReadDir("kernels")
	if err != nil {
		panic(err) // embedded: it is there
	}
	var out []source
	for _, f := range found {
		if path.Ext(f.Name()) == ext {
			out = append(out, source{f.Name(), mustRead("kernels/" + f.Name())})
		}
	}
	return out
}

// target is what to compile for on a GPU of a compute capability: 9.0 has instructions that only sm_90a names.
func target(major, minor int) (string, error) {
	switch {
	case major < 8:
		return "", fmt.Errorf("cuda: the GPU has compute capability %d.%d, 8.0 at least is needed", major, minor)
	case major == 9 && minor == 0:
		return "sm_90a", nil
	}
	return fmt.Sprintf("sm_%d%d", major, minor), nil
}

// smallShared says that a block may have no more than 99 KiB of shared memory on a target, as on all but data centres' GPUs.
func smallShared(target string) bool { return target != "sm_80" && target != "sm_90a" }

// kernel is a function on the device and where the fields of its arguments lie.
type kernel struct {
	name    string
	fn      uintptr
	shared  int // dynamic shared memory in bytes
	offsets []uintptr
}

// load compiles all sources, in parallel, and loads them.
func (d *Device) load(cfg *Config) error {
	list := sources()
	codes, errs := make([][]byte, len(list)), make([]error, len(list))
	open := sync.OnceValues(func() (*nvrtc, error) { return openCompiler(cfg.LibraryPath) })
	var wait sync.WaitGroup
	for i, src := range list {
		wait.Go(func() { codes[i], errs[i] = cubin(src, d.target, cfg.CacheDir, open) })
	}
	wait.Wait()
	d.kernels = map[string]*kernel{}
	all := kernelArgs(d.target)
	for i := range list {
		if errs[i] != nil {
			return errs[i]
		}
		var module uintptr
		err := d.drv.call("cuModuleLoadData of "+list[i].name, d.drv.moduleLoad, uintptr(unsafe.Pointer(&module)), uintptr(unsafe.Pointer(&codes[i][0])))
		if err != nil {
			return err
		}
		d.modules = append(d.modules, module)
		if err := d.findKernels(module, all[list[i].name]); err != nil {
			return err
		}
	}
	return nil
}

// kernelArgs are all kernels that each source has for a target and the arguments of each, as a struct of the same layout.
func kernelArgs(target string) map[string]map[string]any {
	gemm, attention := map[string]any{}, map[string]any{}
	for _, size := range []int{16, 64, 128} {
		for _, what := range []string{"store", "store16", "swiglu", "scatter"} {
			gemm[gemmName(what, size)] = gemmArgs{}
		}
	}
	for _, size := range []int{16, 64} {
		gemm[gemmName("route", size)] = gemmArgs{}
	}
	for _, dim := range []int{16, 32, 64, 128} {
		attention[attendName(dim, false)], attention[attendName(dim, true)] = attendArgs{}, attendArgs{}
	}
	groups, decode, many, few := map[string]any{}, map[string]any{}, map[string]any{}, map[string]any{}
	if target == "sm_90a" {
		groups[groupsName] = attendGroupsArgs{}
		decode[oneName], decode[twoName] = attendGroupsArgs{}, attendGroupsArgs{}
		for _, what := range []string{"store16", "swiglu", "scatter"} {
			many["many_"+what] = manyArgs{}
		}
		for name := range fewNames {
			few[name] = fewArgs{}
		}
	}
	return map[string]map[string]any{
		"attend90.cu":  groups,
		"attention.cu": attention,
		"copy.cu":      {"copy_pieces": copyArgs{}},
		"decode90.cu":  decode,
		"few90.cu":     few,
		"gemm.cu":      gemm,
		"gemm90.cu":    many,
		"rows.cu": {
			"dummy": dummyArgs{}, "place_rows": placeRowsArgs{}, "widen": widenArgs{}, "embed": embedArgs{}, "rms_norm": normArgs{},
			"place_heads": placeArgs{}, "combine": combineArgs{}, "add_rows": addRowsArgs{}, "best_part": bestArgs{}, "argmax": argmaxArgs{}, "gather": gatherArgs{}, "pull": pullArgs{}, "read_all": readArgs{},
		},
		"route.cu": {
			"choose": chooseArgs{}, "one_expert": oneExpertArgs{}, "count_pairs": countArgs{},
			"cut_tiles": cutArgs{}, "sort_pairs": sortArgs{},
		},
	}
}

// sharedBytes is how much dynamic shared memory a kernel takes.
func sharedBytes(target, name string) int {
	if rest, ok := strings.CutPrefix(name, "gemm_"); ok {
		_, rows, _ := strings.Cut(rest, "_")
		n, err := strconv.Atoi(rows)
		if err != nil {
			panic(err) // gemmName made it
		}
		return shapeOf(target, n).shared
	}
	switch {
	case name == groupsName:
		return groupsShape.shared
	case name == oneName:
		return oneShape.shared
	case name == twoName:
		return twoShape.shared
	case strings.HasPrefix(name, "many_"):
		return manyShared
	case strings.HasPrefix(name, "few_"):
		return fewShared(name)
	}
	if rest, ok := strings.CutPrefix(name, "attend_"); ok {
		head, kind, _ := strings.Cut(rest, "_")
		n, err := strconv.Atoi(head)
		if err != nil {
			panic(err) // attendName made it
		}
		return attendShapeOf(target, n, kind == "wide").shared
	}
	return 0
}

// findKernels looks up a module's kernels.
func (d *Device) findKernels(module uintptr, list map[string]any) error {
	for name, args := range list {
		k := &kernel{name: name, shared: sharedBytes(d.target, name)}
		t := reflect.TypeOf(args)
		for i := range t.NumField() {
			k.offsets = append(k.offsets, t.Field(i).Offset)
		}
		if err := d.findKernel(module, k); err != nil {
			return err
		}
		d.kernels[name] = k
	}
	return nil
}

func (d *Device) findKernel(module uintptr, k *kernel) error {
	name := cBytes(k.name)
	err := d.drv.call("cuModuleGetFunction of "+k.name, d.drv.moduleFunction, uintptr(unsafe.Pointer(&k.fn)), module, uintptr(unsafe.Pointer(&name[0])))
	const maxDynamicShared = 8
	if err == nil && k.shared > 48<<10 {
		err = d.drv.call("cuFuncSetAttribute of "+k.name, d.drv.funcAttribute, k.fn, maxDynamicShared, uintptr(k.shared))
	}
	return err
}

// launch queues a kernel. args is a struct whose fields are the kernel's parameters.
func launch[T any](d *Device, stream uintptr, name string, gridX, gridY, threads int, args *T) error {
	if gridX == 0 || gridY == 0 {
		return nil
	}
	k := d.kernels[name]
	params := make([]unsafe.Pointer, len(k.offsets))
	for i, off := range k.offsets {
		params[i] = unsafe.Add(unsafe.Pointer(args), off)
	}
	err := d.drv.call(name, d.drv.launchKernel, k.fn, uintptr(gridX), uintptr(gridY), 1, uintptr(threads), 1, 1, uintptr(k.shared), stream,
		uintptr(unsafe.Pointer(&params[0])), 0)
	runtime.KeepAlive(args)
	return err
}
