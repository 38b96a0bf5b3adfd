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
 *
 * Health: NVML_STUB_<NAME>_<D> plants what device D gives for a name below: numbers of successive processes, separated
 * by commas, the last one from then on; in place of a number the name of an error, or HANG. Processes are counted in
 * the file NVML_STUB_PROCESSES. NVML_STUB_FIELD_<ID>_<D>: of a field; NVML_STUB_LINKS_<D>: how many of 12 links are
 * up; NVML_STUB_LINK_ERROR_<COUNTER>_<D>: of the first link. NVML_STUB_FABRIC_VERSION=2: no structure of version 3.
 *
 * Power of device d is 100 + 100 d + 10 n W in its n-th reading; clocks fall by 15 MHz a reading. Its energy counter
 * rises by 150 J a reading.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, RESET_REQUIRED = 16, VERSION_MISMATCH = 25, UNKNOWN = 999
};

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

static const struct { const char *name; int code; } errors[] = {
    {"INVALID_ARGUMENT", INVALID_ARGUMENT}, {"NOT_SUPPORTED", NOT_SUPPORTED}, {"NO_PERMISSION", NO_PERMISSION},
    {"GPU_IS_LOST", GPU_IS_LOST}, {"RESET_REQUIRED", RESET_REQUIRED}, {"UNKNOWN", UNKNOWN}};

/* How many processes had this library before this one. */
static int process;
static void count_processes(void) {
    const char *path = getenv("NVML_STUB_PROCESSES");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file == NULL) return;
    process = ftell(file);
    fputc('.', file);
    fclose(file);
}

/* What is planted for a name and a device: its error, or SUCCESS with the number, which otherwise keeps its value. */
static int planted(const char *name, device_t device, unsigned long long *number) {
    char variable[64];
    snprintf(variable, sizeof variable, "NVML_STUB_%s_%d", name, device->index);
    const char *text = getenv(variable);
    if (text == NULL) return SUCCESS;
    for (int n = process; n > 0 && strchr(text, ','); n--) text = strchr(text, ',') + 1;
    size_t length = strcspn(text, ",");
    while (length == 4 && strncmp(text, "HANG", length) == 0) pause();
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (strlen(errors[i].name) == length && strncmp(text, errors[i].name, length) == 0) return errors[i].code;
    *number = strtoull(text, NULL, 10);
    return SUCCESS;
}
static int planted_unsigned(const char *name, device_t device, unsigned otherwise, unsigned *value) {
    unsigned long long number = otherwise;
    int code = planted(name, device, &number);
    *value = number;
    return code;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    count_processes();
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
    if (index >= DEVICES) return INVALID_ARGUMENT;
    *device = &devices[index];
    unsigned long long none;
    return planted("HANDLE", *device, &none);
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
int nvmlDeviceGetEccMode(device_t device, unsigned *now, unsigned *pending) {
    *pending = 1;
    return planted_unsigned("ECC_MODE", device, 1, now);
}
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

int nvmlDeviceGetTotalEccErrors(device_t device, int kind, int counter, unsigned long long *count) {
    static const char *names[2][2] = {
        {"ECC_CORRECTED", "ECC_CORRECTED_AGGREGATE"}, {"ECC_UNCORRECTED", "ECC_UNCORRECTED_AGGREGATE"}};
    *count = 0;
    return planted(names[kind][counter], device, count);
}
int nvmlDeviceGetRemappedRows(device_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    int code = planted_unsigned("REMAP_CORRECTED", device, 0, corrected);
    if (code == SUCCESS) code = planted_unsigned("REMAP_UNCORRECTED", device, 0, uncorrected);
    if (code == SUCCESS) code = planted_unsigned("REMAP_PENDING", device, 0, pending);
    if (code == SUCCESS) code = planted_unsigned("REMAP_FAILED", device, 0, failed);
    return code;
}
int nvmlDeviceGetCurrPcieLinkGeneration(device_t device, unsigned *value) { return planted_unsigned("PCIE_GENERATION", device, 4, value); }
int nvmlDeviceGetCurrPcieLinkWidth(device_t device, unsigned *value) { return planted_unsigned("PCIE_WIDTH", device, 16, value); }
int nvmlDeviceGetMaxPcieLinkGeneration(device_t device, unsigned *value) { return planted_unsigned("PCIE_GENERATION_MAX", device, 4, value); }
int nvmlDeviceGetMaxPcieLinkWidth(device_t device, unsigned *value) { return planted_unsigned("PCIE_WIDTH_MAX", device, 16, value); }
int nvmlDeviceGetPcieReplayCounter(device_t device, unsigned *value) { return planted_unsigned("PCIE_REPLAYS", device, 0, value); }

struct pci_info { char legacy[16]; unsigned domain, bus, device, pci_id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(device_t device, struct pci_info *info) {
    memset(info, 0, sizeof *info);
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%X0:00.0", device->index + 0xA);
    return SUCCESS;
}

#define LINKS 12
int nvmlDeviceGetNvLinkState(device_t device, unsigned link, unsigned *state) {
    if (link >= LINKS) return INVALID_ARGUMENT;
    unsigned up;
    int code = planted_unsigned("LINKS", device, LINKS, &up);
    *state = link < up;
    return code;
}
int nvmlDeviceGetNvLinkErrorCounter(device_t device, unsigned link, int counter, unsigned long long *value) {
    char name[24];
    snprintf(name, sizeof name, "LINK_ERROR_%d", counter);
    *value = 0;
    return link == 0 ? planted(name, device, value) : SUCCESS;
}

struct violation { unsigned long long reference, violation; };
int nvmlDeviceGetViolationStatus(device_t device, int policy, struct violation *time) {
    time->violation = 0;
    return policy == 1 ? planted("VIOLATION", device, &time->violation) : SUCCESS;
}

/* Whether a field is given is said in each of them. */
struct field { unsigned id, scope; long long timestamp, latency; int type, code; unsigned long long value; };
enum { UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3 };
int nvmlDeviceGetFieldValues(device_t device, int count, struct field *fields) {
    for (int i = 0; i < count; i++) {
        unsigned id = fields[i].id;
        char name[16];
        snprintf(name, sizeof name, "FIELD_%u", id);
        fields[i].type = id == 91 || id == 230 ? UNSIGNED_INT : UNSIGNED_LONG_LONG;
        fields[i].value = id == 91 ? LINKS : 0;
#ifdef R470
        fields[i].code = id > 160 ? NOT_SUPPORTED : planted(name, device, &fields[i].value);
#else
        fields[i].code = planted(name, device, &fields[i].value);
#endif
    }
    return SUCCESS;
}

#ifndef R470
struct fabric { unsigned version; unsigned char cluster[16]; int status; unsigned clique, state, mask; unsigned char summary; };
int nvmlDeviceGetGpuFabricInfoV(device_t device, struct fabric *fabric) {
    unsigned version = fabric->version >> 24, summary;
    if (version == 3 && getenv("NVML_STUB_FABRIC_VERSION")) return VERSION_MISMATCH;
    int code = planted_unsigned("FABRIC_STATE", device, 3, &fabric->state);
    if (code == SUCCESS) code = planted_unsigned("FABRIC_STATUS", device, 0, (unsigned *)&fabric->status);
    if (code == SUCCESS && version == 3) {
        code = planted_unsigned("FABRIC_HEALTH", device, 1, &summary);
        fabric->summary = summary;
    }
    return code;
}

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
