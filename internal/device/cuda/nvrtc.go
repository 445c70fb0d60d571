package cuda

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
)

// nvrtc is CUDA's run-time compiler.
type nvrtc struct {
	library
	version, create, destroy, compile    uintptr
	logSize, log, codeSize, code, errStr uintptr
	textSize, text                       uintptr // of PTX
}

// openCompiler opens the compiler. Its builtins are opened first, by their full path, as it looks for them by name alone.
func openCompiler(path string) (*nvrtc, error) {
	names := []string{"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}
	openBuiltins(path)
	lib, err := openLibrary(path, names...)
	if err != nil {
		return nil, err
	}
	n := &nvrtc{library: lib}
	return n, lib.symbols(map[string]*uintptr{
		"nvrtcVersion": &n.version, "nvrtcCreateProgram": &n.create, "nvrtcDestroyProgram": &n.destroy,
		"nvrtcCompileProgram": &n.compile, "nvrtcGetProgramLogSize": &n.logSize, "nvrtcGetProgramLog": &n.log,
		"nvrtcGetCUBINSize": &n.codeSize, "nvrtcGetCUBIN": &n.code, "nvrtcGetPTXSize": &n.textSize, "nvrtcGetPTX": &n.text,
		"nvrtcGetErrorString": &n.errStr,
	})
}

// openBuiltins opens the builtins beside the first compiler in the folders. Where there are none the loader finds them or
// compiling says so.
func openBuiltins(path string) {
	for _, dir := range folders(path) {
		found, err := filepath.Glob(filepath.Join(dir, "libnvrtc-builtins.so.*"))
		if err != nil || len(found) == 0 {
			continue
		}
		for _, name := range found {
			if _, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_GLOBAL); err == nil {
				return
			}
		}
	}
}

//go:uintptrescapes
func (n *nvrtc) call(what string, fn uintptr, args ...uintptr) error {
	r, _, _ := purego.SyscallN(fn, args...)
	if uint32(r) == 0 {
		return nil
	}
	var text *byte
	if p, _, _ := purego.SyscallN(n.errStr, r); p != 0 {
		text = *(**byte)(unsafe.Pointer(&p))
	}
	if text == nil {
		return fmt.Errorf("cuda: %s: result %d", what, uint32(r))
	}
	return fmt.Errorf("cuda: %s: %s", what, cString(text))
}

// release is the compiler's own version.
func (n *nvrtc) release() (string, error) {
	var major, minor int32
	err := n.call("nvrtcVersion", n.version, uintptr(unsafe.Pointer(&major)), uintptr(unsafe.Pointer(&minor)))
	return fmt.Sprintf("%d.%d", major, minor), err
}

// build compiles a source for a target such as sm_90a to machine code, or such as compute_80 to PTX. The log holds the
// assembler's report.
func (n *nvrtc) build(src source, target string) (code []byte, log string, err error) {
	text, name := cBytes(src.text), cBytes(src.name)
	var texts, names []*byte
	for _, h := range headers() {
		texts, names = append(texts, &cBytes(h.text)[0]), append(names, &cBytes(h.name)[0])
	}
	var prog uintptr
	err = n.call("nvrtcCreateProgram", n.create, uintptr(unsafe.Pointer(&prog)), uintptr(unsafe.Pointer(&text[0])), uintptr(unsafe.Pointer(&name[0])),
		uintptr(len(texts)), uintptr(unsafe.Pointer(&texts[0])), uintptr(unsafe.Pointer(&names[0])))
	if err != nil {
		return nil, "", err
	}
	defer func() {
		err = errors.Join(err, n.call("nvrtcDestroyProgram", n.destroy, uintptr(unsafe.Pointer(&prog))))
	}()
	var options []*byte
	arguments := append([]string{"--gpu-architecture=" + target}, compileOptions...)
	if smallShared(target) {
		arguments = append(arguments, "--define-macro=SMALL_SHARED")
	}
	for _, o := range arguments {
		options = append(options, &cBytes(o)[0])
	}
	failed := n.call("nvrtcCompileProgram", n.compile, prog, uintptr(len(options)), uintptr(unsafe.Pointer(&options[0])))
	raw, err := n.bytes(prog, "nvrtcGetProgramLog", n.logSize, n.log)
	log = strings.TrimRight(string(raw), "\x00\n")
	if failed != nil {
		return nil, log, fmt.Errorf("%w: %s for %s: %s", failed, src.name, target, log)
	}
	if err != nil {
		return nil, log, err
	}
	if strings.HasPrefix(target, "compute_") {
		code, err = n.bytes(prog, "nvrtcGetPTX", n.textSize, n.text)
	} else {
		code, err = n.bytes(prog, "nvrtcGetCUBIN", n.codeSize, n.code)
	}
	return code, log, err
}

var compileOptions = []string{"--std=c++17", "--ptxas-options=-v", "-default-device"}

// bytes reads a result of a program.
func (n *nvrtc) bytes(prog uintptr, what string, size, get uintptr) ([]byte, error) {
	var length uintptr
	if err := n.call(what+"Size", size, prog, uintptr(unsafe.Pointer(&length))); err != nil || length == 0 {
		return nil, err
	}
	out := make([]byte, length)
	return out, n.call(what, get, prog, uintptr(unsafe.Pointer(&out[0])))
}

func cBytes(s string) []byte { return append([]byte(s), 0) }

// cubin gives a source's machine code: from this binary, from the cache, or compiled and then cached. The key covers the
// sources, the target, the options and the compiler's version.
func cubin(src source, target, cache string, open func() (*nvrtc, error)) ([]byte, error) {
	if code, err := embedded(src, target); code != nil || err != nil {
		return code, err
	}
	n, err := open()
	if err != nil {
		return nil, err
	}
	version, err := n.release()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(cache, sourceKey(src, target)+"-"+version+".cubin")
	if cache != "" {
		if code, err := os.ReadFile(path); err == nil && len(code) > 0 {
			return code, nil
		}
	}
	code, _, err := n.build(src, target)
	if err != nil || cache == "" {
		return code, err
	}
	return code, store(path, code)
}

// store writes a file whole or not at all, whoever else does the same.
func store(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("cuda: kernel cache: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "new-*")
	if err != nil {
		return fmt.Errorf("cuda: kernel cache: %w", err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		err = fmt.Errorf("cuda: kernel cache: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return err
}
