package cuda

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/ebitengine/purego"
)

// library is a shared library that was opened, and where.
type library struct {
	handle uintptr
	path   string
}

// folders are where CUDA's libraries lie beside the loader's own paths, likeliest first. extra is what the user named:
// a file's folder or a folder.
func folders(extra string) []string {
	var out []string
	for _, dir := range []string{extra, os.Getenv("LARDER_CUDA_PATH")} {
		if dir != "" {
			if info, err := os.Stat(dir); err == nil && !info.IsDir() {
				dir = filepath.Dir(dir)
			}
			out = append(out, dir, filepath.Join(dir, "lib64"), filepath.Join(dir, "lib"))
		}
	}
	out = append(out, "/usr/local/cuda/lib64", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/"+machine()+"-linux-gnu")
	return append(out, pythonFolders()...)
}

func machine() string {
	if runtime.GOARCH == "arm64" {
		return "aarch64"
	}
	return "x86_64"
}

// pythonFolders are the library folders of NVIDIA's packages in the Python environment in use, and in the one whose
// python3 comes first on the path.
func pythonFolders() []string {
	roots := []string{os.Getenv("VIRTUAL_ENV"), os.Getenv("CONDA_PREFIX")}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if _, err := os.Stat(filepath.Join(dir, "python3")); err == nil {
			roots = append(roots, filepath.Dir(dir))
			break
		}
	}
	var out []string
	for _, root := range roots {
		if root == "" {
			continue
		}
		for _, pattern := range []string{"lib/python3*/site-packages/nvidia/*/lib", "lib/python3*/dist-packages/nvidia/*/lib"} {
			found, err := filepath.Glob(filepath.Join(root, pattern))
			if err == nil {
				out = append(out, found...)
			}
		}
	}
	return out
}

// openLibrary opens the first of names that the loader or a folder has. The error is one line: what was looked for, and
// where.
func openLibrary(extra string, names ...string) (library, error) {
	var last error
	for _, name := range names {
		h, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_GLOBAL)
		if err == nil {
			return library{h, name}, nil
		}
		last = err
	}
	dirs := folders(extra)
	for _, dir := range dirs {
		for _, name := range names {
			path := filepath.Join(dir, name)
			if _, err := os.Stat(path); err != nil {
				continue
			}
			h, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
			if err == nil {
				return library{h, path}, nil
			}
			last = fmt.Errorf("%s: %w", path, err)
		}
	}
	return library{}, fmt.Errorf("cuda: no %s on the loader's path nor in %s (LARDER_CUDA_PATH adds a folder): %w",
		strings.Join(names, " or "), strings.Join(dirs, ", "), last)
}

// symbols looks up functions; the error names all that are missing.
func (l library) symbols(into map[string]*uintptr) error {
	var errs []error
	for name, at := range into {
		p, err := purego.Dlsym(l.handle, name)
		if err != nil {
			errs = append(errs, fmt.Errorf("cuda: %s has no %s", l.path, name))
		}
		*at = p
	}
	return errors.Join(errs...)
}

// lookFor looks up functions that a library may have; those that it has not are 0.
func (l library) lookFor(into map[string]*uintptr) {
	for name, at := range into {
		if p, err := purego.Dlsym(l.handle, name); err == nil {
			*at = p
		}
	}
}
