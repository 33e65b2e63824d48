/* A libnvidia-ml.so.1 without a GPU: two that are made up, the second divided into one MIG instance.

   It speaks the interface of nvml.h as far as charact asks. Each line of the file that STUB_NVML_RULES names,
   "<function> <code>", makes a function fail; "*" stands for all that ask a device. What opens, closes, allocates and
   frees is written down in the file that STUB_NVML_CALLS names. -DOLD_DRIVER leaves out what came after 2022, and with
   -DSTILL_METER energy stays as it is. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, VERSION_MISMATCH = 25 };
enum { PLAIN, DIVIDED, INSTANCE, NUM_HANDLES };
#define GPU_INSTANCE_ID 5

typedef struct { const char *uuid; unsigned long long used_bytes; } Device;
static Device devices[NUM_HANDLES] = {
    [PLAIN] = {"GPU-0a0a0a0a-0000-0000-0000-000000000001", 12345678912ull},
    [DIVIDED] = {"GPU-0b0b0b0b-0000-0000-0000-000000000002", 40000000000ull},
    [INSTANCE] = {"MIG-0c0c0c0c-0000-0000-0000-000000000003", 2147483648ull},
};
static int num_opened;
static unsigned num_energies, num_reasons, num_snapshots;

static int rule(const char *function) {
    char named[80];
    int code, found = SUCCESS;
    FILE *file = fopen(getenv("STUB_NVML_RULES"), "r");
    while (file && fscanf(file, "%79s %d", named, &code) == 2) {
        if (!strcmp(named, function) || (!strcmp(named, "*") && !strncmp(function, "nvmlDevice", 10)) ||
            (!strcmp(named, "*") && strstr(function, "SampleGet")))
            found = code;
    }
    if (file) fclose(file);
    return found;
}

static void note(const char *what) {
    FILE *file = fopen(getenv("STUB_NVML_CALLS"), "a");
    fprintf(file, "%s\n", what);
    fclose(file);
}

#define CHECKED() \
    do { \
        int code = rule(__func__); \
        if (code || !num_opened) return code ? code : UNINITIALIZED; \
    } while (0)
#define WHOLE_GPU(device) \
    do { \
        CHECKED(); \
        if ((device) == &devices[INSTANCE]) return INVALID_ARGUMENT; \
    } while (0)

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int code = rule(__func__);
    if (code) return code;
    if (!num_opened++) num_energies = num_reasons = num_snapshots = 0;
    note("open");
    return SUCCESS;
}

int nvmlShutdown(void) {
    CHECKED();
    num_opened--;
    note("close");
    return SUCCESS;
}

const char *nvmlErrorString(int code) {
    (void)code;
    return "An error of the stub's";
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    CHECKED();
    *count = 2;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    CHECKED();
    *device = &devices[index];
    return index < 2 ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
    CHECKED();
    for (*device = devices; *device < devices + NUM_HANDLES; ++*device)
        if (!strcmp((*device)->uuid, uuid)) return SUCCESS;
    return NOT_FOUND;
}

int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    WHOLE_GPU(device);
    *current = *pending = device == &devices[DIVIDED];
    return SUCCESS;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device *instance, Device **device) {
    CHECKED();
    *device = &devices[DIVIDED];
    return instance == &devices[INSTANCE] ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetGpuInstanceId(Device *instance, unsigned *id) {
    CHECKED();
    *id = GPU_INSTANCE_ID;
    return instance == &devices[INSTANCE] ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetUtilizationRates(Device *device, unsigned rates[2]) {
    WHOLE_GPU(device);
    rates[0] = 75, rates[1] = 40;
    return device == &devices[DIVIDED] ? NOT_SUPPORTED : SUCCESS;
}

#define TOTAL_BYTES 80000000000ull
#define RESERVED_BYTES 644939776ull

int nvmlDeviceGetMemoryInfo(Device *device, unsigned long long total_free_used[3]) {
    CHECKED();
    total_free_used[0] = TOTAL_BYTES;
    total_free_used[2] = device->used_bytes + RESERVED_BYTES;
    total_free_used[1] = TOTAL_BYTES - total_free_used[2];
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(Device *device, unsigned long long version_total_reserved_free_used[5]) {
    CHECKED();
    version_total_reserved_free_used[1] = TOTAL_BYTES;
    version_total_reserved_free_used[2] = RESERVED_BYTES;
    version_total_reserved_free_used[3] = TOTAL_BYTES - RESERVED_BYTES - device->used_bytes;
    version_total_reserved_free_used[4] = device->used_bytes;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(Device *device, unsigned *milliwatts) {
    WHOLE_GPU(device);
    *milliwatts = 350250;
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(Device *device, unsigned long long *millijoules) {
    WHOLE_GPU(device);
    *millijoules = 9000000000000ull;
#ifndef STILL_METER
    *millijoules += 12500ull * num_energies++;
#endif
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(Device *device, int clock, unsigned *mhz) {
    WHOLE_GPU(device);
    *mhz = clock == 1 ? 1980 : clock == 2 ? 2619 : 0;
    return SUCCESS;
}

/* Idle, power limit, power limit and heat, power brake, and again from the beginning. */
static int reasons(Device *device, unsigned long long *reasons) {
    static const unsigned long long in_turn[] = {0x1, 0x4, 0x4 | 0x40, 0x80};
    (void)device;
    *reasons = in_turn[num_reasons++ % 4];
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *found) {
    WHOLE_GPU(device);
    return reasons(device, found);
}

int nvmlDeviceGetTemperature(Device *device, int sensor, unsigned *degrees) {
    WHOLE_GPU(device);
    *degrees = 61;
    return sensor == 0 ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetPcieThroughput(Device *device, int way, unsigned *kb_per_s) {
    WHOLE_GPU(device);
    *kb_per_s = way == 0 ? 1500 : 2500;
    return SUCCESS;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetCurrentClocksEventReasons(Device *device, unsigned long long *found) {
    WHOLE_GPU(device);
    return reasons(device, found);
}

typedef struct { unsigned version; int sensor; int degrees; } Temperature;

int nvmlDeviceGetTemperatureV(Device *device, Temperature *temperature) {
    WHOLE_GPU(device);
    if (temperature->version != 0x100000C) return VERSION_MISMATCH;
    temperature->degrees = 61;
    return temperature->sensor == 0 ? SUCCESS : INVALID_ARGUMENT;
}

/* GPM. The n-th snapshot since the opening closes window n; what has been counted until then is the sum over windows.
   Multiprocessors are busy in each, warps and all the rest in every odd one. */

typedef struct { unsigned number; double time_s; Device *device; } Snapshot;
typedef struct { unsigned id; int code; double value; const char *names[3]; } Metric;
typedef struct { unsigned version, num_metrics; Snapshot *begin, *end; Metric metrics[1]; } Metrics;
typedef struct { unsigned version, is_supported; } Support;

int nvmlGpmQueryDeviceSupport(Device *device, Support *support) {
    WHOLE_GPU(device);
    if (support->version != 1) return VERSION_MISMATCH;
    support->is_supported = !rule("before_hopper");
    return SUCCESS;
}

int nvmlGpmSampleAlloc(Snapshot **snapshot) {
    CHECKED();
    *snapshot = calloc(1, sizeof(Snapshot));
    note("allocate");
    return SUCCESS;
}

int nvmlGpmSampleFree(Snapshot *snapshot) {
    if (!num_opened) return UNINITIALIZED;
    free(snapshot);
    note("free");
    return SUCCESS;
}

static int take(Device *device, Snapshot *snapshot) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *snapshot = (Snapshot){++num_snapshots, now.tv_sec + now.tv_nsec / 1e9, device};
    return SUCCESS;
}

int nvmlGpmSampleGet(Device *device, Snapshot *snapshot) {
    WHOLE_GPU(device);
    return device == &devices[DIVIDED] ? NOT_SUPPORTED : take(device, snapshot);
}

int nvmlGpmMigSampleGet(Device *device, unsigned instance_id, Snapshot *snapshot) {
    WHOLE_GPU(device);
    if (device != &devices[DIVIDED] || instance_id != GPU_INSTANCE_ID) return INVALID_ARGUMENT;
    return take(&devices[INSTANCE], snapshot);
}

static double percent(unsigned id) {
    switch (id) {
    case 1: return 90;
    case 2: return 80;
    case 3: return 60;
    case 5: return 30;
    case 10: return 50;
    case 11: return 1;
    case 12: return 10;
    case 13: return 0;
    case 20: return 100;
    case 21: return 200;
    default: return -1;
    }
}

int nvmlGpmMetricsGet(Metrics *asked) {
    CHECKED();
    if (asked->version != 1) return VERSION_MISMATCH;
    Snapshot *begin = asked->begin, *end = asked->end;
    /* The real library gives metrics over a window that is too short, but wrong ones. */
    if (begin->device != end->device || end->time_s - begin->time_s < 0.1) return INVALID_ARGUMENT;
    for (Metric *metric = asked->metrics; metric < asked->metrics + asked->num_metrics; ++metric) {
        double num_windows = end->number - begin->number, num_odd = (end->number + 1) / 2 - (begin->number + 1) / 2;
        double full = percent(metric->id) * (end->device == &devices[INSTANCE] ? 0.5 : 1);
        metric->code = percent(metric->id) < 0 ? NOT_SUPPORTED : SUCCESS;
        metric->value = rule("idle") ? 0 : metric->id == 2 ? full : full * num_odd / num_windows;
    }
    return SUCCESS;
}
#endif
