// A stand-in for NCCL, based on the stand-in for the CUDA runtime. Ranks are
// threads of one process. Names, meanings and error codes are NCCL's;
// standin/README.md says what is modelled.
#ifndef LOCKSTEP_STANDIN_INCLUDE_NCCL_H_
#define LOCKSTEP_STANDIN_INCLUDE_NCCL_H_

#include <cuda_runtime.h>

#include <climits>
#include <cstddef>

#define NCCL_VERSION(X, Y, Z) ((X)*10000 + (Y)*100 + (Z))
#define NCCL_VERSION_CODE NCCL_VERSION(2, 28, 9)
#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_CONFIG_UNDEF_INT INT_MIN

#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096

using ncclComm_t = struct ncclComm*;
using ncclWindow_t = struct ncclWindow_vidmem*;

struct ncclUniqueId {
  char internal[NCCL_UNIQUE_ID_BYTES];
};

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};

enum ncclRedOp_t {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
};

enum ncclDataType_t {
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt64 = 4,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
};

struct ncclConfig_t {
  int blocking;
};
#define NCCL_CONFIG_INITIALIZER \
  { NCCL_CONFIG_UNDEF_INT }

ncclResult_t ncclGetVersion(int* version);
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
const char* ncclGetErrorString(ncclResult_t result);
const char* ncclGetLastError(ncclComm_t comm);

// Blocks until all ranks have called it. Collective calls and messages return
// when they are on their streams. blocking = 0 is refused.
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id,
                                    int rank, ncclConfig_t* config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
// Removes the communicator's calls from their streams. Other ranks that wait
// for these calls may wait forever. If graphs with its calls are not destroyed
// within 10 seconds (NcclFaults::finalize_limit), returns ncclInternalError.
ncclResult_t ncclCommAbort(ncclComm_t comm);
// Waits until no call of the communicator is on a stream, and until the graphs
// that recorded its calls are destroyed, as NCCL does. After 10 seconds
// (NcclFaults::finalize_limit) it writes to standard error and returns
// ncclInternalError. Communicators always block here.
ncclResult_t ncclCommFinalize(ncclComm_t comm);
// Finalizes the communicator if that was not done, then frees it. If finalizing
// fails, the communicator is not freed.
ncclResult_t ncclCommDestroy(ncclComm_t comm);

ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();

// Ranks whose calls do not match wait forever, as ranks of NCCL may.
ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count,
                           ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclReduce(const void* send, void* receive, size_t count,
                        ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void* send, void* receive,
                               size_t receive_count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream);
ncclResult_t ncclAllGather(const void* send, void* receive, size_t send_count,
                           ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count,
                           ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type,
                      int peer, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type,
                      int peer, ncclComm_t comm, cudaStream_t stream);

// Allocates device memory that windows can be made of, with the alignment that
// they need. ncclMemFree returns ncclInvalidUsage while a window starts there.
ncclResult_t ncclMemAlloc(void** pointer, size_t bytes);
ncclResult_t ncclMemFree(void* pointer);

// Blocks until all ranks have called it, with the same number of bytes and with
// NCCL_WIN_DEFAULT. If windows are switched off (control.h), the call succeeds
// and the window is null.
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, size_t size,
                                    ncclWindow_t* window, int flags);
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window);

#endif  // LOCKSTEP_STANDIN_INCLUDE_NCCL_H_
