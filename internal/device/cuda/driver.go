package cuda

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"

	"larder/internal/device"
)

// driver is the part of CUDA's driver API that is used here. Calls need the context to be current in the calling thread:
// see Device.on.
type driver struct {
	library
	init, version, count, get, name, attribute, totalMem    uintptr
	retain, release, setCurrent                             uintptr
	memAlloc, memFree, hostAlloc, hostFree, memInfo         uintptr
	copyAsync, copy2DAsync, setAsync                        uintptr
	streamCreate, streamDestroy, streamSync, streamWait     uintptr
	eventCreate, eventDestroy, eventRecord, eventQuery      uintptr
	eventSync, eventElapsed                                 uintptr
	moduleLoad, moduleUnload, moduleFunction, funcAttribute uintptr
	launchKernel, errorName, encodeTiled                    uintptr
	hostRegister, hostUnregister, busID                     uintptr

	copyBatch, copyBatchOld uintptr // of CUDA 13 and of 12.8; 0: the driver is older
}

// openDriver opens the driver's library. The versioned names are those of CUDA 12 and 13.
func openDriver(path string) (*driver, error) {
	lib, err := openLibrary(path, "libcuda.so.1")
	if err != nil {
		return nil, err
	}
	d := &driver{library: lib}
	err = lib.symbols(map[string]*uintptr{
		"cuInit": &d.init, "cuDriverGetVersion": &d.version, "cuDeviceGetCount": &d.count, "cuDeviceGet": &d.get,
		"cuDeviceGetName": &d.name, "cuDeviceGetAttribute": &d.attribute, "cuDeviceTotalMem_v2": &d.totalMem,
		"cuDevicePrimaryCtxRetain": &d.retain, "cuDevicePrimaryCtxRelease_v2": &d.release, "cuCtxSetCurrent": &d.setCurrent,
		"cuMemAlloc_v2": &d.memAlloc, "cuMemFree_v2": &d.memFree, "cuMemHostAlloc": &d.hostAlloc, "cuMemFreeHost": &d.hostFree,
		"cuMemGetInfo_v2": &d.memInfo, "cuMemcpyAsync": &d.copyAsync, "cuMemcpy2DAsync_v2": &d.copy2DAsync,
		"cuMemsetD8Async": &d.setAsync, "cuStreamCreate": &d.streamCreate, "cuStreamDestroy_v2": &d.streamDestroy,
		"cuStreamSynchronize": &d.streamSync, "cuStreamWaitEvent": &d.streamWait, "cuEventCreate": &d.eventCreate,
		"cuEventDestroy_v2": &d.eventDestroy, "cuEventRecord": &d.eventRecord, "cuEventQuery": &d.eventQuery,
		"cuEventSynchronize": &d.eventSync, "cuEventElapsedTime": &d.eventElapsed, "cuModuleLoadData": &d.moduleLoad,
		"cuModuleUnload": &d.moduleUnload, "cuModuleGetFunction": &d.moduleFunction, "cuFuncSetAttribute": &d.funcAttribute,
		"cuLaunchKernel": &d.launchKernel, "cuGetErrorName": &d.errorName,
		"cuTensorMapEncodeTiled": &d.encodeTiled,
		"cuMemHostRegister_v2":   &d.hostRegister, "cuMemHostUnregister": &d.hostUnregister, "cuDeviceGetPCIBusId": &d.busID,
	})
	if err != nil {
		return nil, err
	}
	lib.lookFor(map[string]*uintptr{"cuMemcpyBatchAsync_v2": &d.copyBatch, "cuMemcpyBatchAsync": &d.copyBatchOld})
	return d, d.call("cuInit", d.init, 0)
}

// Results of the driver that mean something here.
const (
	resultOK          = 0
	resultOutOfMemory = 2
	resultNotReady    = 600
)

// lost are the results after which a context is of no more use.
var lost = map[uintptr]bool{
	4: true, 46: true, 214: true, 220: true, 700: true, 702: true, 709: true, 710: true, 714: true, 715: true, 716: true,
	717: true, 718: true, 719: true, 721: true, 999: true,
}

// call calls fn. Pointers are given as uintptr(unsafe.Pointer(&x)) in the call itself; the pragma keeps x in place.
//
//go:uintptrescapes
func (d *driver) call(what string, fn uintptr, args ...uintptr) error {
	r, _, _ := purego.SyscallN(fn, args...)
	if r = uintptr(uint32(r)); r == resultOK {
		return nil
	}
	return d.fail(what, r)
}

// result calls fn, whose result is no error.
func (d *driver) result(fn uintptr, args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(fn, args...)
	return uintptr(uint32(r))
}

// fail makes an error of a result.
func (d *driver) fail(what string, r uintptr) error {
	switch {
	case r == resultOutOfMemory:
		return fmt.Errorf("cuda: %s: %w", what, device.ErrOutOfMemory)
	case lost[r]:
		return fmt.Errorf("cuda: %s: %w: %s", what, device.ErrLost, d.resultName(r))
	}
	return fmt.Errorf("cuda: %s: %s", what, d.resultName(r))
}

// resultName is the driver's name of a result.
func (d *driver) resultName(r uintptr) string {
	var p *byte
	e, _, _ := purego.SyscallN(d.errorName, r, uintptr(unsafe.Pointer(&p)))
	if uint32(e) != resultOK || p == nil {
		return fmt.Sprintf("result %d", r)
	}
	return cString(p)
}

// cString copies a string of C.
func cString(p *byte) string {
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}

// Attributes of a device, as cuDeviceGetAttribute numbers them.
const (
	attrUnits       = 16
	attrMajor       = 75
	attrMinor       = 76
	attrSharedOptIn = 97
)

// number reads an attribute.
func (d *driver) number(attr uintptr, dev int32) (int, error) {
	var v int32
	err := d.call("cuDeviceGetAttribute", d.attribute, uintptr(unsafe.Pointer(&v)), attr, uintptr(dev))
	return int(v), err
}

// open finds a GPU by number.
func (d *driver) open(ordinal int) (int32, error) {
	var n, dev int32
	if err := d.call("cuDeviceGetCount", d.count, uintptr(unsafe.Pointer(&n))); err != nil {
		return 0, err
	}
	if ordinal < 0 || ordinal >= int(n) {
		return 0, fmt.Errorf("cuda: GPU %d of %d", ordinal, n)
	}
	return dev, d.call("cuDeviceGet", d.get, uintptr(unsafe.Pointer(&dev)), uintptr(ordinal))
}

// on runs f in a thread in which the context is current. It costs under a microsecond where it already is.
func (d *Device) on(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := d.drv.call("cuCtxSetCurrent", d.drv.setCurrent, d.context); err != nil {
		return err
	}
	return f()
}
