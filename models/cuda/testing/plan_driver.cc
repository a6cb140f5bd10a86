// A driver of CUDA for a machine without one, under the driver's name. It has
// the functions that cuDNN looks up before it builds a plan of attention. They
// accept compiled kernels, which cuDNN loads when it builds the plan. All other
// functions return CUDA_ERROR_NO_DEVICE, so nothing can run.
namespace {

constexpr int kSuccess = 0;
constexpr int kNoDevice = 100;

// All handles point to this.
char handle;

int Give(void** made) {
  *made = &handle;
  return kSuccess;
}

}  // namespace

extern "C" {

int cuLibraryLoadData(void** library, const void*, void*, void*, unsigned,
                      void*, void*, unsigned) {
  return Give(library);
}
int cuLibraryGetKernel(void** kernel, void*, const char*) {
  return Give(kernel);
}
int cuLibraryUnload(void*) { return kSuccess; }
int cuKernelSetAttribute(int, int, void*, int) { return kSuccess; }
int cuKernelGetAttribute(int* value, int, void*, int) {
  *value = 0;
  return kSuccess;
}

#define LOCKSTEP_NO_DEVICE(function) \
  int function() { return kNoDevice; }

LOCKSTEP_NO_DEVICE(cuCtxGetCurrent)
LOCKSTEP_NO_DEVICE(cuCtxGetDevice)
LOCKSTEP_NO_DEVICE(cuCtxGetLimit)
LOCKSTEP_NO_DEVICE(cuCtxPopCurrent)
LOCKSTEP_NO_DEVICE(cuCtxPushCurrent)
LOCKSTEP_NO_DEVICE(cuDeviceGet)
LOCKSTEP_NO_DEVICE(cuDeviceGetAttribute)
LOCKSTEP_NO_DEVICE(cuDeviceGetCount)
LOCKSTEP_NO_DEVICE(cuDevicePrimaryCtxRelease)
LOCKSTEP_NO_DEVICE(cuDevicePrimaryCtxReset)
LOCKSTEP_NO_DEVICE(cuDevicePrimaryCtxRetain)
LOCKSTEP_NO_DEVICE(cuDriverGetVersion)
LOCKSTEP_NO_DEVICE(cuFuncGetAttribute)
LOCKSTEP_NO_DEVICE(cuFuncSetAttribute)
LOCKSTEP_NO_DEVICE(cuGetErrorName)
LOCKSTEP_NO_DEVICE(cuGetErrorString)
LOCKSTEP_NO_DEVICE(cuInit)
LOCKSTEP_NO_DEVICE(cuLaunchCooperativeKernel)
LOCKSTEP_NO_DEVICE(cuLaunchKernel)
LOCKSTEP_NO_DEVICE(cuLaunchKernelEx)
LOCKSTEP_NO_DEVICE(cuLibraryLoadFromFile)
LOCKSTEP_NO_DEVICE(cuLinkAddData)
LOCKSTEP_NO_DEVICE(cuLinkAddData_v2)
LOCKSTEP_NO_DEVICE(cuLinkAddFile_v2)
LOCKSTEP_NO_DEVICE(cuLinkComplete)
LOCKSTEP_NO_DEVICE(cuLinkCreate)
LOCKSTEP_NO_DEVICE(cuLinkCreate_v2)
LOCKSTEP_NO_DEVICE(cuLinkDestroy)
LOCKSTEP_NO_DEVICE(cuMemcpyDtoH_v2)
LOCKSTEP_NO_DEVICE(cuModuleGetFunction)
LOCKSTEP_NO_DEVICE(cuModuleGetGlobal_v2)
LOCKSTEP_NO_DEVICE(cuModuleLoadData)
LOCKSTEP_NO_DEVICE(cuModuleLoadDataEx)
LOCKSTEP_NO_DEVICE(cuModuleLoadFatBinary)
LOCKSTEP_NO_DEVICE(cuModuleUnload)
LOCKSTEP_NO_DEVICE(cuOccupancyMaxActiveBlocksPerMultiprocessor)
LOCKSTEP_NO_DEVICE(cuOccupancyMaxPotentialClusterSize)
LOCKSTEP_NO_DEVICE(cuStreamGetCtx)
LOCKSTEP_NO_DEVICE(cuStreamSynchronize)
LOCKSTEP_NO_DEVICE(cuTensorMapEncodeTiled)

#undef LOCKSTEP_NO_DEVICE

}  // extern "C"
