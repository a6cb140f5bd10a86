// The mark of a function that kernels call as well.
#ifndef LOCKSTEP_BASE_HOST_DEVICE_H_
#define LOCKSTEP_BASE_HOST_DEVICE_H_

#ifdef __CUDACC__
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#else
#define LOCKSTEP_HOST_DEVICE
#endif

#endif  // LOCKSTEP_BASE_HOST_DEVICE_H_
