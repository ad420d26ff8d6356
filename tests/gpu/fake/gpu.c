/* A GPU that executes nothing, for machines without one.

   Preloaded by LD_PRELOAD, this library answers for the CUDA driver, the CUDA runtime, cuBLAS, cuDNN, CUPTI and NVML. Every call succeeds, but
   for allocations beyond the capacity. No data is written to memory of the device: a copy to the host gives zeros. Kernels, copies and calls of cuBLAS and cuDNN are counted
   and not run. So PyTorch's own CUDA code runs: its dispatcher, its allocator, its streams, the threads of autograd, the checks of fused
   kernels, the errors of operations without a deterministic form, and `torch.cuda.set_sync_debug_mode`.

   FAKE_GPUS is the number of devices; the default is 1. Trailing parameters that a function ignores are left out, which
   the calling convention allows and `-w` silences. Another version of CUDA may need other functions and structures. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "driver_types.h"

#define ADD(counter, number) __atomic_fetch_add(&(counter), (number), __ATOMIC_SEQ_CST)
#define SUCCEEDS(name) int name() { return 0; }

static void *new_handle(void) {
    static uintptr_t last = 4096;
    return (void *)(ADD(last, 64) + 64);
}

/* What a test reads ------------------------------------------------------------------------------------------------------------------- */

enum { KERNELS, GEMMS, CONVOLUTIONS, TO_GPU, TO_HOST, ON_GPU, MEMSETS, WAITS, ALLOCATIONS, PINNED_ALLOCATIONS, NUM_COUNTS };
static long counts[NUM_COUNTS];

#define MOST_LAUNCHES 65536
static const void *launched[MOST_LAUNCHES]; /* the function of each kernel since `fake_gpu_clear` */
static long num_launched;

static struct { const void *function; const char *name; } *kernels; /* all kernels of the program */
static long num_kernels, room_for_kernels;

#define GEMM ((void *)1)
#define CONVOLUTION ((void *)2)
#define GRAPH ((void *)3)

static __thread void *captured; /* the stream whose operations this thread records as a graph */
static __thread long num_recorded;
static __thread int is_invalid; /* 1 if the recording has failed */

static int launch(int kind, const void *function) {
    if (captured) { num_recorded++; return 0; }
    ADD(counts[kind], 1);
    long at = ADD(num_launched, 1);
    if (at < MOST_LAUNCHES) launched[at] = function;
    return 0;
}

static __thread int is_watched; /* 1 in the thread that has called `fake_gpu_clear`. Only there, copies to the device and waits for
                                      events are counted: a thread that reads data ahead may do both.
                                      Those of autograd's thread are not counted either; everything else is counted in all threads. */

void fake_gpu_clear(void) {
    is_watched = 1;
    memset(counts, 0, sizeof counts);
    num_launched = 0;
}

void fake_gpu_read(long *values) { memcpy(values, counts, sizeof counts); }

long fake_gpu_num_launched(void) { return num_launched < MOST_LAUNCHES ? num_launched : MOST_LAUNCHES; }

const char *fake_gpu_launched(long at) {
    if (launched[at] == GEMM) return "cuBLAS";
    if (launched[at] == CONVOLUTION) return "cuDNN";
    if (launched[at] == GRAPH) return "a graph";
    for (long i = 0; i < num_kernels; i++)
        if (kernels[i].function == launched[at]) return kernels[i].name;
    return "compiled by Triton";
}

/* Memory ------------------------------------------------------------------------------------------------------------------------------ */

#define GIB (1UL << 30)
#define PAGE 4096UL
#define SPAN (1024 * GIB) /* addresses of pinned memory, and of each device; no address is handed out twice, even after a free */
#define MOST_GPUS 8

static char *addresses; /* span 0 is pinned memory, span 1 + n is the memory of device n */
static size_t next_address[1 + MOST_GPUS], used[1 + MOST_GPUS];
static size_t capacity = 80 * GIB; /* of each device */
static int num_gpus = 1;
static __thread int current_gpu;

__attribute__((constructor)) static void begin(void) {
    if (getenv("FAKE_GPUS")) num_gpus = atoi(getenv("FAKE_GPUS"));
    addresses = mmap(NULL, (1 + MOST_GPUS) * SPAN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (addresses == MAP_FAILED || num_gpus < 0 || num_gpus > MOST_GPUS) {
        fprintf(stderr, "fake GPU: no address space, or FAKE_GPUS is not a number from 0 to 8\n");
        abort();
    }
}

void fake_gpu_limit(size_t bytes) { capacity = bytes; }

size_t fake_gpu_used(void) { return used[1 + current_gpu]; }

static int span_of(const void *at) {
    size_t offset = (const char *)at - addresses;
    return offset < (1 + MOST_GPUS) * SPAN ? offset / SPAN : -1;
}

static int on_gpu(const void *at) { return span_of(at) > 0; }

static int allocate(void **at, size_t size, int span) {
    size = (size + PAGE - 1) / PAGE * PAGE;
    *at = NULL;
    if (span > 0 && used[span] + size > capacity) return cudaErrorMemoryAllocation;
    size_t begins = ADD(next_address[span], size + PAGE);
    if (begins + size + PAGE > SPAN) { fprintf(stderr, "fake GPU: all addresses of a span are used\n"); abort(); }
    char *block = addresses + span * SPAN + begins;
    *(size_t *)block = size; /* the page in front of the memory holds its size */
    ADD(used[span], size);
    *at = block + PAGE;
    return 0;
}

static int release(void *at) {
    if (at) ADD(used[span_of(at)], -*(size_t *)((char *)at - PAGE));
    return 0;
}

int cudaMalloc(void **at, size_t size) { ADD(counts[ALLOCATIONS], 1); return allocate(at, size, 1 + current_gpu); }
int cudaMallocAsync(void **at, size_t size) { return cudaMalloc(at, size); }
int cudaHostAlloc(void **at, size_t size) { ADD(counts[PINNED_ALLOCATIONS], 1); return allocate(at, size, 0); }
int cudaMallocHost(void **at, size_t size) { return cudaHostAlloc(at, size); }
int cudaFree(void *at) { return release(at); }
int cudaFreeAsync(void *at) { return release(at); }
int cudaFreeHost(void *at) { return release(at); }
SUCCEEDS(cudaHostRegister) SUCCEEDS(cudaHostUnregister)

int cudaMemGetInfo(size_t *free, size_t *total) {
    *total = capacity;
    *free = capacity - used[1 + current_gpu];
    return 0;
}

int cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *at) {
    int span = span_of(at);
    memset(found, 0, sizeof *found);
    found->type = span > 0 ? cudaMemoryTypeDevice : span == 0 ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    found->device = span > 0 ? span - 1 : 0;
    found->devicePointer = found->hostPointer = (void *)at;
    return 0;
}

static int copy(void *to, const void *from, size_t size) {
    if (captured) {
        num_recorded++;
        if (span_of(to) < 0 || span_of(from) < 0) is_invalid = 1;
        return is_invalid ? cudaErrorStreamCaptureUnsupported : 0;
    }
    if (on_gpu(to)) ADD(counts[on_gpu(from) ? ON_GPU : TO_GPU], on_gpu(from) || is_watched);
    else if (on_gpu(from)) { ADD(counts[TO_HOST], 1); memset(to, 0, size); }
    else memmove(to, from, size);
    return 0;
}

int cudaMemcpyAsync(void *to, const void *from, size_t size) { return copy(to, from, size); }
static int wait(void) {
    ADD(counts[WAITS], 1);
    if (captured) is_invalid = 1;
    return captured ? cudaErrorStreamCaptureUnsupported : 0;
}
int cudaMemcpy(void *to, const void *from, size_t size) { int error = wait(); return error ? error : copy(to, from, size); }
int cudaMemcpyPeerAsync(void *to, int there, const void *from, int here, size_t size) { return copy(to, from, size); }
int cudaMemcpy2DAsync(char *to, size_t to_pitch, const char *from, size_t from_pitch, size_t width, size_t height) {
    for (size_t row = 0; row < height && !on_gpu(to); row++) copy(to + row * to_pitch, from + row * from_pitch, width);
    return on_gpu(to) ? copy(to, from, 0) : 0;
}
int cudaMemsetAsync(void *at, int value, size_t size) {
    if (captured) num_recorded++;
    else ADD(counts[MEMSETS], 1);
    return 0;
}
int cudaMemset(void *at, int value, size_t size) { return cudaMemsetAsync(at, value, size); }
SUCCEEDS(cudaMemcpyToSymbol)
int cudaGetSymbolAddress(void **at) { *at = calloc(1, 1 << 20); return 0; }

/* Kernels ----------------------------------------------------------------------------------------------------------------------------- */

void **__cudaRegisterFatBinary() { static void *handle[4]; return handle; }
SUCCEEDS(__cudaRegisterFatBinaryEnd) SUCCEEDS(__cudaUnregisterFatBinary) SUCCEEDS(__cudaRegisterVar) SUCCEEDS(__cudaRegisterManagedVar)
int __cudaInitModule() { return 1; }

void __cudaRegisterFunction(void **binary, const char *function, char *device_function, const char *name) {
    if (num_kernels == room_for_kernels) {
        room_for_kernels = room_for_kernels ? 2 * room_for_kernels : 65536;
        kernels = realloc(kernels, room_for_kernels * sizeof *kernels);
    }
    kernels[num_kernels].function = function;
    kernels[num_kernels++].name = name;
}

typedef struct { unsigned x, y, z; } Dimensions;
static __thread struct { Dimensions grid, block; size_t shared; void *stream; } pushed; /* between `kernel<<<...>>>` and its launch */

unsigned __cudaPushCallConfiguration(Dimensions grid, Dimensions block, size_t shared, void *stream) {
    pushed.grid = grid; pushed.block = block; pushed.shared = shared; pushed.stream = stream;
    return 0;
}
int __cudaPopCallConfiguration(Dimensions *grid, Dimensions *block, size_t *shared, void **stream) {
    *grid = pushed.grid; *block = pushed.block; *shared = pushed.shared; *stream = pushed.stream;
    return 0;
}
int __cudaGetKernel(void **kernel, const void *function) { *kernel = (void *)function; return 0; }
int cudaLaunchKernel(const void *function) { return launch(KERNELS, function); }
int cudaLaunchKernelExC(const void *configuration, const void *function) { return launch(KERNELS, function); }
int __cudaLaunchKernel(const void *function) { return launch(KERNELS, function); }
int __cudaLaunchKernel_ptsz(const void *function) { return launch(KERNELS, function); }
int cudaLaunchHostFunc(void *stream, void (*function)(void *), void *data) { function(data); return 0; }

int cudaFuncGetAttributes(struct cudaFuncAttributes *found) {
    memset(found, 0, sizeof *found);
    found->maxThreadsPerBlock = 1024; found->numRegs = 32; found->ptxVersion = found->binaryVersion = 90;
    found->maxDynamicSharedSizeBytes = 49152;
    return 0;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *number) { *number = 8; return 0; }
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *number) { *number = 8; return 0; }
SUCCEEDS(cudaFuncSetAttribute) SUCCEEDS(cudaKernelSetAttributeForDevice)

/* Devices: an H100 -------------------------------------------------------------------------------------------------------------------- */

#define VERSION 13020 /* CUDA 13.2 */
#define NAME "NVIDIA H100 that executes nothing"

int cudaGetDeviceCount(int *number) { *number = num_gpus; return num_gpus ? 0 : cudaErrorNoDevice; }
int cudaGetDevice(int *number) { *number = current_gpu; return 0; }
int cudaSetDevice(int number) { current_gpu = number; return 0; }
int cudaDriverGetVersion(int *version) { *version = VERSION; return 0; }
int cudaRuntimeGetVersion(int *version) { *version = VERSION; return 0; }
int cudaDeviceGetPCIBusId(char *text, int size, int number) { snprintf(text, size, "0000:%02d:00.0", number + 1); return 0; }
int cudaDeviceCanAccessPeer(int *can) { *can = 0; return 0; }
int cudaDeviceGetStreamPriorityRange(int *lowest, int *highest) { *lowest = 0; *highest = -5; return 0; }
int cudaDeviceSynchronize() { return wait(); }
SUCCEEDS(cudaInitDevice) SUCCEEDS(cudaGetLastError) SUCCEEDS(cudaPeekAtLastError) SUCCEEDS(cudaProfilerStart) SUCCEEDS(cudaProfilerStop)
const char *cudaGetErrorName(int error) { return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "error of the fake GPU"; }
const char *cudaGetErrorString(int error) {
    return error == cudaErrorMemoryAllocation ? "out of memory"
        : error == cudaErrorStreamCaptureUnsupported ? "operation not permitted when stream is capturing" : "error of the fake GPU";
}

int cudaDeviceGetAttribute(int *value, int attribute, int number) {
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *value = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 49152; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 232448; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 233472; break;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrWarpSize: case cudaDevAttrMaxBlocksPerMultiprocessor: *value = 32; break;
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrL2CacheSize: *value = 50 << 20; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    default: *value = 0;
    }
    return 0;
}

int cudaGetDeviceProperties(struct cudaDeviceProp *found, int number) {
    memset(found, 0, sizeof *found);
    strcpy(found->name, NAME);
    found->totalGlobalMem = capacity; found->major = 9; found->multiProcessorCount = 132; found->warpSize = 32;
    found->sharedMemPerBlock = 49152; found->sharedMemPerBlockOptin = 232448; found->sharedMemPerMultiprocessor = 233472;
    found->regsPerBlock = found->regsPerMultiprocessor = 65536; found->totalConstMem = 65536; found->l2CacheSize = 50 << 20;
    found->maxThreadsPerBlock = 1024; found->maxThreadsPerMultiProcessor = 2048; found->maxBlocksPerMultiProcessor = 32;
    found->maxThreadsDim[0] = found->maxThreadsDim[1] = 1024; found->maxThreadsDim[2] = 64;
    found->maxGridSize[0] = 2147483647; found->maxGridSize[1] = found->maxGridSize[2] = 65535;
    found->unifiedAddressing = found->concurrentKernels = 1; found->asyncEngineCount = 3; found->memoryBusWidth = 5120;
    found->uuid.bytes[0] = number + 1; found->pciBusID = number + 1;
    return 0;
}

static int zero(void) { return 0; } /* for functions that this library does not have */
int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags, int *found) {
    *function = dlsym(RTLD_DEFAULT, name);
    if (!*function) *function = zero;
    if (found) *found = 0;
    return 0;
}
int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *found) {
    return cudaGetDriverEntryPointByVersion(name, function, 0, flags, found);
}

/* Streams and events: all work is done at once ---------------------------------------------------------------------------------------- */

int cudaStreamCreate(void **stream) { *stream = new_handle(); return 0; }
int cudaStreamCreateWithFlags(void **stream) { *stream = new_handle(); return 0; }
int cudaStreamCreateWithPriority(void **stream) { *stream = new_handle(); return 0; }
int cudaStreamGetPriority(void *stream, int *priority) { *priority = 0; return 0; }
int cudaStreamIsCapturing(void *stream, int *is_capturing) { *is_capturing = captured && stream == captured; return 0; }
int cudaStreamGetCaptureInfo(void *stream, int *is_capturing, unsigned long long *id) {
    if (id) *id = 1;
    return cudaStreamIsCapturing(stream, is_capturing);
}
int cudaStreamSynchronize(void *stream) { return captured && stream != captured ? 0 : wait(); } /* another stream may be waited for */
SUCCEEDS(cudaStreamDestroy) SUCCEEDS(cudaStreamQuery) SUCCEEDS(cudaStreamWaitEvent) SUCCEEDS(cudaThreadExchangeStreamCaptureMode)
int cudaEventCreate(void **event) { *event = new_handle(); return 0; }
int cudaEventCreateWithFlags(void **event) { *event = new_handle(); return 0; }
int cudaEventElapsedTime(float *milliseconds) { *milliseconds = 1; return 0; }
int cudaEventSynchronize() { return is_watched ? wait() : 0; }
SUCCEEDS(cudaEventDestroy) SUCCEEDS(cudaEventQuery) SUCCEEDS(cudaEventRecord) SUCCEEDS(cudaEventRecordWithFlags)

/* Graphs: what a stream is asked while it is captured is counted and not launched. To launch the graph counts as one kernel. */

int cudaStreamBeginCapture(void *stream) { captured = stream; num_recorded = is_invalid = 0; return 0; }
int cudaStreamEndCapture(void *stream, void **graph) {
    captured = NULL;
    *graph = is_invalid ? NULL : (void *)num_recorded;
    return is_invalid ? cudaErrorStreamCaptureInvalidated : 0;
}
int cudaGraphGetNodes(void *graph, void *nodes, size_t *number) { *number = (size_t)graph; return 0; }
int cudaGraphInstantiateWithFlags(void **executable, void *graph) { *executable = graph; return 0; }
int cudaGraphLaunch() { return launch(KERNELS, GRAPH); }
SUCCEEDS(cudaGraphDestroy) SUCCEEDS(cudaGraphExecDestroy)

/* The driver, which PyTorch asks for contexts, and Triton for its kernels -------------------------------------------------------------- */

int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDeviceGetCount(int *number) { return cudaGetDeviceCount(number); }
int cuDeviceGetAttribute(int *value, int attribute, int number) { return cudaDeviceGetAttribute(value, attribute, number); }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is_active) { if (flags) *flags = 0; *is_active = 1; return 0; }
int cuDevicePrimaryCtxRetain(void **context) { *context = (void *)64; return 0; }
int cuDriverGetVersion(int *version) { *version = VERSION; return 0; }
int cuCtxGetCurrent(void **context) { *context = (void *)64; return 0; }
int cuCtxGetDevice(int *device) { *device = current_gpu; return 0; }
int cuCtxGetLimit(size_t *value) { *value = 8 << 20; return 0; }
int cuGetErrorString(int error, const char **text) { *text = "error of the fake GPU"; return 0; }
int cuModuleGetFunction(void **function) { *function = new_handle(); return 0; }
int cuModuleLoad(void **module) { *module = new_handle(); return 0; }
int cuModuleLoadData(void **module) { *module = new_handle(); return 0; }
int cuModuleLoadDataEx(void **module) { *module = new_handle(); return 0; }
int cuFuncGetAttribute(int *value, int attribute) { *value = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0; return 0; } /* threads, registers */
int cuLaunchKernel(const void *function) { return launch(KERNELS, function); }
int cuLaunchKernelEx(const void *configuration, const void *function) { return launch(KERNELS, function); }
int cuLaunchCooperativeKernel(const void *function) { return launch(KERNELS, function); }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *number) { *number = 8; return 0; }
int cuOccupancyMaxActiveClusters(int *number) { *number = 8; return 0; }
int cuStreamIsCapturing(void *stream, int *is_capturing) { *is_capturing = 0; return 0; }
SUCCEEDS(cuInit) SUCCEEDS(cuCtxSetCurrent) SUCCEEDS(cuCtxSetLimit) SUCCEEDS(cuFuncSetAttribute) SUCCEEDS(cuFuncSetCacheConfig)
SUCCEEDS(cuLinkAddData_v2) SUCCEEDS(cuLinkComplete) SUCCEEDS(cuLinkCreate_v2) SUCCEEDS(cuModuleUnload) SUCCEEDS(cuPointerGetAttribute)
SUCCEEDS(cuPointerGetAttributes) SUCCEEDS(cuTensorMapEncodeTiled) SUCCEEDS(cuTensorMapEncodeIm2col)

/* cuBLAS ------------------------------------------------------------------------------------------------------------------------------ */

#define MULTIPLIES(name) int name() { return launch(GEMMS, GEMM); }
MULTIPLIES(cublasSgemm_v2) MULTIPLIES(cublasDgemm_v2) MULTIPLIES(cublasGemmEx) MULTIPLIES(cublasSgemmEx) MULTIPLIES(cublasLtMatmul)
MULTIPLIES(cublasGemmStridedBatchedEx) MULTIPLIES(cublasSgemmStridedBatched) MULTIPLIES(cublasDgemmStridedBatched)
MULTIPLIES(cublasSgemv_v2) MULTIPLIES(cublasDgemv_v2)
int cublasCreate_v2(void **handle) { *handle = new_handle(); return 0; }
int cublasGetMathMode(void *handle, int *mode) { *mode = 0; return 0; }
int cublasGetPointerMode_v2(void *handle, int *mode) { *mode = 0; return 0; }
SUCCEEDS(cublasDestroy_v2) SUCCEEDS(cublasSetStream_v2) SUCCEEDS(cublasSetWorkspace_v2) SUCCEEDS(cublasSetMathMode)
SUCCEEDS(cublasSetPointerMode_v2) SUCCEEDS(cublasSetSmCountTarget)
int cublasLtCreate(void **handle) { *handle = new_handle(); return 0; }
int cublasLtMatmulDescCreate(void **handle) { *handle = new_handle(); return 0; }
int cublasLtMatrixLayoutCreate(void **handle) { *handle = new_handle(); return 0; }
int cublasLtMatmulPreferenceCreate(void **handle) { *handle = new_handle(); return 0; }
SUCCEEDS(cublasLtMatmulDescDestroy) SUCCEEDS(cublasLtMatmulDescSetAttribute) SUCCEEDS(cublasLtMatrixLayoutDestroy)
SUCCEEDS(cublasLtMatrixLayoutSetAttribute) SUCCEEDS(cublasLtMatmulPreferenceDestroy) SUCCEEDS(cublasLtMatmulPreferenceSetAttribute)
size_t cublasLtGetVersion(void) { return 130401; }
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference, int wanted, void *result, int *number) {
    memset(result, 0, 76); /* an algorithm of 64 bytes, the size of its workspace, and its state */
    *number = 1;
    return 0;
}

/* cuDNN: its graph API, and the older API that PyTorch uses for batch normalisation ---------------------------------------------------- */

#define CONVOLVES(name) int name() { return launch(CONVOLUTIONS, CONVOLUTION); }
#define CREATES(name) int name(void **handle) { *handle = new_handle(); return 0; }
CONVOLVES(cudnnBackendExecute)
CONVOLVES(cudnnBatchNormalizationForwardTrainingEx) CONVOLVES(cudnnBatchNormalizationBackwardEx) CONVOLVES(cudnnBatchNormalizationForwardInference)
CREATES(cudnnCreate) CREATES(cudnnCreateActivationDescriptor) CREATES(cudnnCreateTensorDescriptor) CREATES(cudnnCreateFilterDescriptor)
CREATES(cudnnCreatePoolingDescriptor) CREATES(cudnnCreateDropoutDescriptor) CREATES(cudnnCreateConvolutionDescriptor)
SUCCEEDS(cudnnSetStream) SUCCEEDS(cudnnSetActivationDescriptor) SUCCEEDS(cudnnSetTensorNdDescriptor) SUCCEEDS(cudnnSetPooling2dDescriptor)
SUCCEEDS(cudnnSetFilterNdDescriptor) SUCCEEDS(cudnnDestroyActivationDescriptor) SUCCEEDS(cudnnDestroyTensorDescriptor)
SUCCEEDS(cudnnDestroyFilterDescriptor) SUCCEEDS(cudnnDestroyDropoutDescriptor) SUCCEEDS(cudnnDestroyConvolutionDescriptor)
SUCCEEDS(cudnnBackendDestroyDescriptor) SUCCEEDS(cudnnBackendSetAttribute) SUCCEEDS(cudnnBackendFinalize)
int cudnnBackendCreateDescriptor(int type, void **handle) { *handle = new_handle(); return 0; }
int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *handle, int mode, int operation, void *x, void *z, void *y, void *scale, void *activation, size_t *size) { *size = 0; return 0; }
int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle, int mode, int operation, void *activation, void *x, size_t *size) { *size = 0; return 0; }
int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *handle, int mode, int operation, void *x, void *y, void *dy, void *dz, void *dx, void *scale, void *activation, size_t *size) { *size = 0; return 0; }

/* One engine, without knobs, notes and workspace. Numbers as in cudnn_graph.h. */
enum { HEURISTIC_RESULTS = 202, KNOB_CHOICES = 302, KNOB_INFO = 1302, NUMERICAL_NOTES = 1303, BEHAVIOR_NOTES = 1305 };
enum { OF_INT64 = 3, OF_VOID = 6, OF_DESCRIPTOR = 15 };
int cudnnBackendGetAttribute(void *descriptor, int attribute, int type, int64_t wanted, int64_t *number, void *values) {
    int64_t found = wanted;
    if (attribute == HEURISTIC_RESULTS) found = 1;
    if (attribute == KNOB_CHOICES || attribute == KNOB_INFO || attribute == NUMERICAL_NOTES || attribute == BEHAVIOR_NOTES) found = 0;
    if (number) *number = found;
    if (values && type != OF_DESCRIPTOR) memset(values, 0, (type == OF_INT64 || type == OF_VOID ? 8 : 4) * wanted);
    return 0;
}
size_t cudnnGetVersion(void) { return 92600; }
size_t cudnnGetCudartVersion(void) { return VERSION; }
const char *cudnnGetErrorString(int status) { return "error of the fake GPU"; }
void cudnnGetLastErrorString(char *text, size_t size) { if (size) *text = 0; }

/* CUPTI, which the profiler asks for the times of kernels: there are none --------------------------------------------------------------- */

SUCCEEDS(cuptiActivityDisable) SUCCEEDS(cuptiActivityEnable) SUCCEEDS(cuptiActivityEnableCudaEventDeviceTimestamps)
SUCCEEDS(cuptiActivityEnableDriverApi) SUCCEEDS(cuptiActivityEnableRuntimeApi) SUCCEEDS(cuptiActivityFlushAll)
SUCCEEDS(cuptiActivityPopExternalCorrelationId) SUCCEEDS(cuptiActivityPushExternalCorrelationId) SUCCEEDS(cuptiActivityRegisterCallbacks)
SUCCEEDS(cuptiActivityRegisterTimestampCallback) SUCCEEDS(cuptiActivitySetAttribute) SUCCEEDS(cuptiEnableCallback)
SUCCEEDS(cuptiEnableDomain) SUCCEEDS(cuptiFinalize) SUCCEEDS(cuptiUnsubscribe)
int cuptiActivityGetNextRecord() { return 12; } /* no further record */
int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *number) { *number = 0; return 0; }
int cuptiGetCallbackName(int domain, uint32_t id, const char **name) { *name = ""; return 0; }
int cuptiGetResultString(int result, const char **text) { *text = "error of the fake GPU"; return 0; }
int cuptiGetVersion(uint32_t *version) { *version = 130200; return 0; }
int cuptiSubscribe(void **subscriber) { *subscriber = new_handle(); return 0; }

/* NVML -------------------------------------------------------------------------------------------------------------------------------- */

SUCCEEDS(nvmlInit_v2) SUCCEEDS(nvmlInitWithFlags) SUCCEEDS(nvmlShutdown)
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "595.10"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = VERSION; return 0; }
int nvmlDeviceGetCount_v2(unsigned *number) { *number = num_gpus; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned number, void **device) { *device = (void *)(uintptr_t)(number + 1); return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) { *device = (void *)(uintptr_t)1; return 0; }
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *number, void *processes) { *number = 0; return 0; }
SUCCEEDS(nvmlDeviceGetNvLinkRemoteDeviceType) SUCCEEDS(nvmlDeviceGetNvLinkRemotePciInfo_v2) SUCCEEDS(nvmlDeviceGetGpuFabricInfoV)
int nvmlDeviceGetName(void *device, char *text, unsigned size) { snprintf(text, size, NAME); return 0; }
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) { /* total, free, used */
    memory[0] = capacity; memory[2] = used[(uintptr_t)device]; memory[1] = memory[0] - memory[2];
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) { rates[0] = rates[1] = 0; return 0; }
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { *milliwatts = 70000; return 0; }
