/* A libnvidia-ml.so.1 with two NVIDIA A100-SXM4-40GB, for tests without a device.
 *
 * Built as it is: a driver with the calls of today. -DR470: without those that driver R470 lacks. -DNO_COUNTER: devices
 * from before Volta, which do not count energy.
 * -DLOST_AFTER=N: device 1 gives GPU_IS_LOST from the (N+1)th reading of its power on, three times.
 * NVML_STUB_NO_DRIVER=1 makes nvmlInit fail; NVML_STUB_NAME_1 renames device 1; NVML_STUB_MIG=1 divides device 0.
 * NVML_STUB_INIT_MS: how long nvmlInit takes, as without a persistence daemon.
 * NVML_STUB_HANG_AFTER=N, NVML_STUB_UNKNOWN_AFTER=N: from the (N+1)th reading of its power on, device 0 never answers,
 * or gives UNKNOWN, as in a container whose devices were taken away.
 * NVML_STUB_THROTTLE="0x4,0x60" gives the masks of successive readings, the last one from then on.
 * Power of device d is 100 + 100 d + 10 n W in its n-th reading; clocks fall by 15 MHz a reading. Its energy counter
 * rises by 150 J a reading.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, UNKNOWN = 999 };

#define DEVICES 2
#define MIB (1ULL << 20)

struct device { int index; int powers; int energies; int clocks; int throttles; };
static struct device devices[DEVICES] = {{.index = 0}, {.index = 1}};
typedef struct device *device_t;

static const char *uuids[DEVICES] = {
    "GPU-11111111-0000-0000-0000-000000000000", "GPU-22222222-0000-0000-0000-000000000000"};

static int set_below(const char *name, int n) {
    const char *text = getenv(name);
    return text != NULL && n >= atoi(text);
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (getenv("NVML_STUB_INIT_MS")) usleep(1000 * atoi(getenv("NVML_STUB_INIT_MS")));
    return getenv("NVML_STUB_NO_DRIVER") ? DRIVER_NOT_LOADED : SUCCESS;
}
int nvmlShutdown(void) { return SUCCESS; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) {
#ifdef R470
    snprintf(text, size, "470.129.06");
#else
    snprintf(text, size, "580.65.06");
#endif
    return SUCCESS;
}
int nvmlDeviceGetCount_v2(unsigned *count) { *count = DEVICES; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device) {
    if (index >= DEVICES) return 2;
    *device = &devices[index];
    return SUCCESS;
}
int nvmlDeviceGetIndex(device_t device, unsigned *index) { *index = device->index; return SUCCESS; }
int nvmlDeviceGetName(device_t device, char *text, unsigned size) {
    const char *other = device->index == 1 ? getenv("NVML_STUB_NAME_1") : NULL;
    snprintf(text, size, "%s", other ? other : "NVIDIA A100-SXM4-40GB");
    return SUCCESS;
}
int nvmlDeviceGetUUID(device_t device, char *text, unsigned size) {
    snprintf(text, size, "%s", uuids[device->index]);
    return SUCCESS;
}
int nvmlDeviceGetPowerUsage(device_t device, unsigned *milliwatts) {
    int n = device->powers++;
#ifdef LOST_AFTER
    if (device->index == 1 && n >= LOST_AFTER && n < LOST_AFTER + 3) return GPU_IS_LOST;
#endif
    while (device->index == 0 && set_below("NVML_STUB_HANG_AFTER", n)) pause();
    if (device->index == 0 && set_below("NVML_STUB_UNKNOWN_AFTER", n)) return UNKNOWN;
    *milliwatts = 100000 + 100000 * device->index + 10000 * n;
    return SUCCESS;
}
int nvmlDeviceGetTotalEnergyConsumption(device_t device, unsigned long long *millijoules) {
    *millijoules = 150000ULL * ++device->energies;
#ifdef NO_COUNTER
    return NOT_SUPPORTED;
#else
    return SUCCESS;
#endif
}
int nvmlDeviceGetEnforcedPowerLimit(device_t device, unsigned *milliwatts) { (void)device; *milliwatts = 300000; return SUCCESS; }
int nvmlDeviceGetPowerManagementDefaultLimit(device_t device, unsigned *milliwatts) { (void)device; *milliwatts = 400000; return SUCCESS; }
int nvmlDeviceGetTemperature(device_t device, int sensor, unsigned *celsius) { (void)sensor; *celsius = 40 + device->index; return SUCCESS; }
int nvmlDeviceGetClockInfo(device_t device, int domain, unsigned *mhz) {
    *mhz = domain == 1 ? 1410 - 15 * device->clocks++ : 1215;
    return SUCCESS;
}
int nvmlDeviceGetMaxClockInfo(device_t device, int domain, unsigned *mhz) { (void)device; *mhz = domain == 1 ? 1410 : 1215; return SUCCESS; }
int nvmlDeviceGetUtilizationRates(device_t device, unsigned rates[2]) {
    /* Device 1 does not give this one, and says how often it was asked. */
    if (device->index == 1) {
        fprintf(stderr, "utilisation of device 1 asked\n");
        return NOT_SUPPORTED;
    }
    rates[0] = 87; rates[1] = 40;
    return SUCCESS;
}
int nvmlDeviceGetMigMode(device_t device, unsigned *now, unsigned *pending) {
    *now = device->index == 0 && getenv("NVML_STUB_MIG");
    *pending = 1;
    return SUCCESS;
}
int nvmlDeviceGetEccMode(device_t device, unsigned *now, unsigned *pending) { (void)device; *now = 1; *pending = 1; return SUCCESS; }
int nvmlDeviceGetPersistenceMode(device_t device, unsigned *mode) { (void)device; *mode = 1; return SUCCESS; }

struct memory_v1 { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(device_t device, struct memory_v1 *memory) {
    (void)device;
    memory->total = 40960 * MIB; memory->used = 600 * MIB; memory->free = memory->total - memory->used;
    return SUCCESS;
}

static int throttle(device_t device, unsigned long long *mask) {
    const char *text = getenv("NVML_STUB_THROTTLE");
    for (int n = device->throttles++; text && n > 0 && strchr(text, ','); n--) text = strchr(text, ',') + 1;
    *mask = text ? strtoull(text, NULL, 16) : 0;
    return SUCCESS;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(device_t device, unsigned long long *mask) { return throttle(device, mask); }

/* Device 1 is shared with one other tenant, process 4242. */
struct process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };
static int processes(device_t device, unsigned *count, struct process *list) {
    unsigned room = *count;
    *count = device->index;
    if (*count == 0) return SUCCESS;
    if (list == NULL || room < *count) return INSUFFICIENT_SIZE;
    list[0].pid = 4242; list[0].used = 512 * MIB;
    return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v2(device_t device, unsigned *count, struct process *list) { return processes(device, count, list); }

#ifndef R470
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(device_t device, struct memory_v2 *memory) {
    (void)device;
    memory->total = 40960 * MIB; memory->reserved = 88 * MIB; memory->used = 512 * MIB;
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}
int nvmlDeviceGetCurrentClocksEventReasons(device_t device, unsigned long long *mask) { return throttle(device, mask); }
int nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned *count, struct process *list) { return processes(device, count, list); }
#endif
