/* A CUDA device that holds memory and computes nothing, for tests of ONNX Runtime's CUDA provider without a GPU.

   What the provider needs and what is not defined here, build.py defines: functions that say that all went well. Memory
   is the host's, copies are made, kernels are counted and not run. While a stream is captured, calls that CUDA refuses
   then are refused with CUDA's errors. Errors are simulated on demand: FAKE_CUDA_ERROR is what every look for a device
   ends with, FAKE_CUDA_CAPABILITY the compute capability (80 for 8.0), FAKE_CUDA_DRIVER the newest CUDA that the driver runs
   (12020 for 12.2), FAKE_CUDA_MEMORY how much memory there is (in MiB), FAKE_CUDA_FULL leaves none of it. */

#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, OUT_OF_MEMORY = 2, OLD_DRIVER = 35, NO_DEVICE = 100, BAD_DEVICE = 101, CAPTURE_UNSUPPORTED = 900, CAPTURE_IMPLICIT = 906 };
#define NAME "a device that computes nothing"
#define STREAMS 1024
#define HANDLE 5

enum { HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2 };
enum { LAUNCHES, REPLAYS, UPLOADS, DOWNLOADS, ALLOCATIONS, WAITS, REFUSED, FOLLOWED, KINDS };

int cudaDeviceGetAttribute(int *value, int attribute, int device);

static atomic_long counts[KINDS];
static void *captured; /* the stream that is being captured */

long fake_count(int kind) { return counts[kind]; }

/* A kernel, or a call of a library that is one. */
long fake_launch(void) {
    counts[LAUNCHES]++;
    return SUCCESS;
}

struct dims {
    unsigned x, y, z;
};

static struct {
    void *stream;
    long launches;
} launched[STREAMS];
static atomic_flag counting = ATOMIC_FLAG_INIT; /* held by who reads or changes them */

static void begin_counting(void) {
    while (atomic_flag_test_and_set(&counting)) {}
}

static void end_counting(void) { atomic_flag_clear(&counting); }

/* How many kernels of its own the provider has launched on a stream; those of cuBLAS are not told apart. */
long fake_launches_on(void *stream) {
    long launches = 0;
    begin_counting();
    for (int at = 0; at < STREAMS; at++)
        if (launched[at].launches && launched[at].stream == stream) launches = launched[at].launches;
    end_counting();
    return launches;
}

/* On how many streams that was. */
long fake_streams(void) {
    int at = 0;
    begin_counting();
    while (at < STREAMS && launched[at].launches) at++;
    end_counting();
    return at;
}

/* What a launch in angle brackets says, between its two calls. */
static _Thread_local struct {
    struct dims grid, block;
    size_t shared;
    void *stream;
} said;

unsigned __cudaPushCallConfiguration(struct dims grid, struct dims block, size_t shared, void *stream) {
    said.grid = grid, said.block = block, said.shared = shared, said.stream = stream;
    return SUCCESS;
}

int __cudaPopCallConfiguration(struct dims *grid, struct dims *block, size_t *shared, void **stream) {
    *grid = said.grid, *block = said.block, *shared = said.shared, *stream = said.stream;
    return SUCCESS;
}

int cudaLaunchKernel(const void *kernel, struct dims grid, struct dims block, void **arguments, size_t shared, void *stream) {
    int at = 0;
    begin_counting();
    while (at < STREAMS && launched[at].launches && launched[at].stream != stream) at++;
    if (at == STREAMS) abort(); /* more streams than are counted */
    launched[at].stream = stream;
    launched[at].launches++;
    end_counting();
    return fake_launch();
}

int __cudaLaunchKernel(void *kernel, struct dims grid, struct dims block, void **arguments, size_t shared, void *stream) {
    return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

static int refuse(int error) {
    counts[REFUSED]++;
    return error;
}

static int number_of(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static int device_error(void) { return number_of("FAKE_CUDA_ERROR", SUCCESS); }

static int capability(void) { return number_of("FAKE_CUDA_CAPABILITY", 80); }

static size_t memory(void) { return (size_t)number_of("FAKE_CUDA_MEMORY", 16 << 10) << 20; }

/* The driver. */

int cuInit(unsigned flags) { return device_error(); }

int cuDriverGetVersion(int *version) {
    *version = number_of("FAKE_CUDA_DRIVER", 13000);
    return SUCCESS;
}

int cuDeviceGetCount(int *count) {
    *count = device_error() ? 0 : 1;
    return device_error();
}

/* A handle is no number of a device. */
int cuDeviceGet(int *device, int number) {
    *device = number + HANDLE;
    return SUCCESS;
}

int cuDeviceGetName(char *name, int size, int device) {
    if (device != HANDLE) return BAD_DEVICE;
    strncpy(name, NAME, size);
    return SUCCESS;
}

int cuDeviceGetPCIBusId(char *bus, int size, int device) {
    strncpy(bus, "0000:65:00.0", size);
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) { return cudaDeviceGetAttribute(value, attribute, device); }

int cuDeviceTotalMem_v2(size_t *size, int device) {
    *size = memory();
    return SUCCESS;
}

int cudaDriverGetVersion(int *version) { return cuDriverGetVersion(version); }

int cudaRuntimeGetVersion(int *version) {
    *version = 13000;
    return SUCCESS;
}

/* The device. */

struct properties { /* cudaDeviceProp of CUDA 13, up to what is asked for; the rest stays as the caller has it */
    char name[256], uuid[16], luid[8];
    unsigned luid_mask;
    size_t memory, shared_memory;
    int registers, warp;
    size_t pitch;
    int threads, block[3], grid[3];
    size_t constant_memory;
    int major, minor;
    size_t texture_alignment, texture_pitch;
    int multiprocessors;
};

int cudaGetDeviceProperties(struct properties *found, int device) {
    *found = (struct properties){
        .name = NAME,
        .memory = memory(),
        .shared_memory = 48 << 10,
        .registers = 64 << 10,
        .warp = 32,
        .pitch = (size_t)2 << 30,
        .threads = 1024,
        .block = {1024, 1024, 64},
        .grid = {0x7fffffff, 0xffff, 0xffff},
        .constant_memory = 64 << 10,
        .major = capability() / 10,
        .minor = capability() % 10,
        .texture_alignment = 512,
        .texture_pitch = 32,
        .multiprocessors = 108,
    };
    return SUCCESS;
}

int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
    case 16: *value = 108; break; /* multiprocessors */
    case 75: *value = capability() / 10; break;
    case 76: *value = capability() % 10; break;
    default: *value = 1024;
    }
    return SUCCESS;
}

int cudaGetDeviceCount(int *count) { return cuDeviceGetCount(count); }

int cudaSetDevice(int device) { return device_error(); }

int cudaGetDevice(int *device) {
    *device = 0;
    return SUCCESS;
}

int cudaDeviceSynchronize(void) {
    counts[WAITS]++;
    return captured ? refuse(CAPTURE_UNSUPPORTED) : SUCCESS;
}

const char *cudaGetErrorName(int error) { return error ? "cudaError" : "cudaSuccess"; }

const char *cudaGetErrorString(int error) {
    switch (error) {
    case SUCCESS: return "no error";
    case OUT_OF_MEMORY: return "out of memory";
    case OLD_DRIVER: return "CUDA driver version is insufficient for CUDA runtime version";
    case NO_DEVICE: return "no CUDA-capable device is detected";
    case CAPTURE_UNSUPPORTED: return "operation not permitted when stream is capturing";
    case CAPTURE_IMPLICIT: return "operation would make the legacy stream depend on a capturing blocking stream";
    default: return "unknown error";
    }
}

const char *cublasGetStatusString(int status) { return status ? "unknown status" : "CUBLAS_STATUS_SUCCESS"; }

const char *cublasGetStatusName(int status) { return cublasGetStatusString(status); }

/* Memory. */

int cudaMalloc(void **place, size_t size) {
    if (captured) return refuse(CAPTURE_UNSUPPORTED);
    if (getenv("FAKE_CUDA_FULL")) return OUT_OF_MEMORY;
    counts[ALLOCATIONS]++;
    size = (size + 255) / 256 * 256;
    *place = aligned_alloc(256, size);
    if (!*place) return OUT_OF_MEMORY;
    memset(*place, 0, size); /* so what no kernel computes is the same in every test */
    return SUCCESS;
}

int cudaFree(void *place) {
    free(place);
    return SUCCESS;
}

int cudaMallocHost(void **place, size_t size) {
    *place = malloc(size);
    return *place ? SUCCESS : OUT_OF_MEMORY;
}

int cudaHostAlloc(void **place, size_t size, unsigned flags) { return cudaMallocHost(place, size); }

int cudaFreeHost(void *place) {
    free(place);
    return SUCCESS;
}

int cudaMemGetInfo(size_t *left, size_t *all) {
    *left = (size_t)8 << 30;
    *all = memory();
    return SUCCESS;
}

static int copy(void *to, const void *from, size_t size, int kind) {
    counts[UPLOADS] += kind == HOST_TO_DEVICE;
    counts[DOWNLOADS] += kind == DEVICE_TO_HOST;
    memmove(to, from, size);
    return SUCCESS;
}

int cudaMemcpy(void *to, const void *from, size_t size, int kind) {
    return captured ? refuse(CAPTURE_IMPLICIT) : copy(to, from, size, kind);
}

int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
    return copy(to, from, size, kind);
}

int cudaMemset(void *place, int value, size_t size) {
    memset(place, value, size);
    return SUCCESS;
}

int cudaMemsetAsync(void *place, int value, size_t size, void *stream) { return cudaMemset(place, value, size); }

/* Streams, events, handles: something that is not null. */

static int make(void **handle) {
    *handle = malloc(1);
    return *handle ? SUCCESS : OUT_OF_MEMORY;
}

int cudaStreamCreate(void **stream) { return make(stream); }

int cudaStreamCreateWithFlags(void **stream, unsigned flags) { return make(stream); }

int cudaStreamSynchronize(void *stream) {
    counts[WAITS]++;
    return captured && captured == stream ? refuse(CAPTURE_UNSUPPORTED) : SUCCESS;
}

int cudaEventCreate(void **event) { return make(event); }

int cudaEventCreateWithFlags(void **event, unsigned flags) { return make(event); }

int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) {
    counts[FOLLOWED]++;
    return captured ? refuse(CAPTURE_UNSUPPORTED) : SUCCESS;
}

int cublasCreate_v2(void **handle) { return make(handle); }

int cublasLtCreate(void **handle) { return make(handle); }

/* cuDNN: what is asked of it needs no memory. */

size_t cudnnGetVersion(void) { return 91400; }

int cudnnCreate(void **handle) { return make(handle); }

int cudnnDestroy(void *handle) {
    free(handle);
    return SUCCESS;
}

const char *cudnnGetErrorString(int status) { return status ? "unknown status" : "CUDNN_STATUS_SUCCESS"; }

int cudnnCreateTensorDescriptor(void **handle) { return make(handle); }

int cudnnCreateReduceTensorDescriptor(void **handle) { return make(handle); }

int cudnnGetReductionIndicesSize(void *handle, void *reduce, void *from, void *to, size_t *size) {
    *size = 0;
    return SUCCESS;
}

int cudnnGetReductionWorkspaceSize(void *handle, void *reduce, void *from, void *to, size_t *size) {
    *size = 0;
    return SUCCESS;
}

void **__cudaRegisterFatBinary(void *binary) {
    static void *handle[1];
    return handle;
}

/* Capture: the kernels of a graph are counted once, when they are captured, and each replay as one. */

int cudaStreamBeginCapture(void *stream, int mode) {
    captured = stream;
    return SUCCESS;
}

int cudaStreamEndCapture(void *stream, void **graph) {
    captured = NULL;
    return make(graph);
}

int cudaStreamIsCapturing(void *stream, int *status) {
    *status = captured && captured == stream;
    return SUCCESS;
}

int cudaGraphInstantiate(void **executable, void *graph, unsigned long long flags) { return make(executable); }

int cudaGraphLaunch(void *executable, void *stream) {
    counts[REPLAYS]++;
    return SUCCESS;
}
