/* A stand-in for libnvidia-ml.so.1 with just the functions that Preflight's binding calls, by NVIDIA's own header: what is not declared
 * there as it stands here does not compile.
 *
 * DRIVER is the branch whose library this is (470, 535, 550, 570, 580): functions, versions of structures and fields that came with a later
 * one are not there.
 *
 * It reads node.json (FAKE_NODE_JSON, else /etc/node-local/node.json) and shows the GPUs named in NVIDIA_VISIBLE_DEVICES (by a
 * device plugin, or by a reference of the pod's; `all` are all) and in FAKE_GPU_* (by claims, a variable each). The
 * reader is a scanner, not a JSON parser: within "gpus" each object is expected to hold "uuid", "name" and "pci" as strings.
 * Further strings say what the driver counts (see `keys`); `*_grows` are counters that are so much higher with each millisecond that node.json has been there. "lost" is
 * what the driver says of a GPU that it cannot reach. What a GPU does not say is not supported on it. A GPU named
 * in the container's /tmp/fake-lost-gpus is lost: the fake all_reduce_perf writes there what fell off the bus under its load.
 *
 * A driver.json beside the library itself comes first, and then all its GPUs are shown: so a folder stands in for a whole driver. Of such a
 * node "driver_version" says the version. Of a GPU "fabric_state", "fabric_status", "fabric_health", "fabric_cluster" (32 hexadecimal
 * digits) and "fabric_clique" are what nvmlGpuFabricInfo says of NVLink beyond the node.
 *
 * "faults" of a GPU, and "driver_faults" of the node for calls about no GPU, are what goes wrong: `CALL=WHAT,…`, where CALL is a function
 * of nvml.h or `*`, and WHAT is `crash` (SIGSEGV), `hang` (for ever) or the number of an nvmlReturn_t. */
#define _GNU_SOURCE
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef DRIVER
#define DRIVER 580
#endif

extern char **environ;

typedef unsigned long long count_t;
enum { MAX_GPUS = 64, MAX_SLICES = 8 };

enum { MIG, MIG_DEVICES, REMAP_PENDING, REMAP_FAILED, ECC, ECC_GROWS, SRAM_THRESHOLD, RECOVERY, LINKS, LINKS_UP, LINK_ENDS, LINK_SPEED,
       LINK_FIELDS, RECOVERY_GROWS, CRC_GROWS, REPLAYS_GROW, WIDTH, WIDTH_MAX, GENERATION, GENERATION_MAX, ANCESTOR, PROCESSES, PERSISTENCE,
       REASONS, TEMPERATURE, CLOCK, CLOCK_MAX, POWER, POWER_LIMIT, POWER_DEFAULT, XID, FABRIC_STATE, FABRIC_STATUS, FABRIC_CLIQUE,
       FABRIC_HEALTH, NUMBERS };
static const char *keys[NUMBERS] = {
    "mig", "mig_devices", "remap_pending", "remap_failed", "ecc", "ecc_grows", "sram_threshold", "recovery_action", "links", "links_up",
    "link_ends",     /* what is at the other end of each: nvmlIntNvLinkDeviceType_t */
    "link_speed",    /* MB/s of each */
    "link_fields",   /* links are counted by fields alone, as of newer GPUs */
    "link_recovery_grows", "link_crc_grows", "pcie_replays_grow", "pcie_width", "pcie_width_max", "pcie_generation", "pcie_generation_max",
    "ancestor",      /* how far other GPUs are: nvmlGpuTopologyLevel_t */
    "processes", "persistence", "reasons", "temperature", "clock", "clock_max",
    "power", "power_limit", "power_default", /* milliwatts */
    "xid",           /* one event, once */
    "fabric_state", "fabric_status", "fabric_clique", "fabric_health",
};

struct nvmlDevice_st {
    char uuid[96], name[96], pci[32], link[16], lost[64], serial[32], cluster[40], faults[512];
    int known[NUMBERS], numbers[NUMBERS];
};
struct nvmlEventSet_st { int registered; };
static struct nvmlDevice_st gpus[MAX_GPUS], slices[MAX_GPUS * MAX_SLICES];
static struct nvmlEventSet_st events;
static unsigned count;
static count_t age; /* of node.json, milliseconds */
static int ready, whole; /* `ready`: how often nvmlInit was called and nvmlShutdown was not */
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static char version[32], faults[512];

/* The string value of "key" after `from` and before `until`, into `out`. */
static int field(const char *from, const char *until, const char *key, char *out, size_t size) {
    char quoted[32];
    snprintf(quoted, sizeof quoted, "\"%s\"", key);
    const char *at = strstr(from, quoted);
    if (!at || at >= until) return 0;
    at = strchr(at + strlen(quoted), '"');
    if (!at || at >= until) return 0;
    const char *end = strchr(++at, '"');
    if (!end || (size_t)(end - at) >= size) return 0;
    memcpy(out, at, end - at);
    out[end - at] = 0;
    return 1;
}

static int visible(const char *uuid) {
    if (whole) return 1;
    const char *list = getenv("NVIDIA_VISIBLE_DEVICES");
    int found = list && (!strcmp(list, "all") || strstr(list, uuid) != NULL);
    for (char **at = environ; !found && *at; at++) {
        const char *value = strncmp(*at, "FAKE_GPU_", 9) ? NULL : strchr(*at, '=');
        found = value && !strcmp(value + 1, uuid);
    }
    return found;
}

/* The driver.json beside this library. */
static FILE *beside(void) {
    Dl_info own;
    char path[512];
    if (!dladdr((void *)beside, &own) || !own.dli_fname || strlen(own.dli_fname) >= sizeof path - 10) return NULL;
    char *slash = strrchr(strcpy(path, own.dli_fname), '/');
    if (!slash) return NULL;
    strcpy(slash + 1, "driver.json");
    return fopen(path, "r");
}

/* What `plan` makes of `call`. */
static nvmlReturn_t fault(const char *plan, const char *call) {
    char copy[512], *rest = strcpy(copy, plan);
    for (char *step; (step = strsep(&rest, ",")) && *step;) {
        char *what = strchr(step, '=');
        if (!what) continue;
        *what++ = 0;
        if (strcmp(step, "*") && strcmp(step, call)) continue;
        if (!strcmp(what, "crash")) raise(SIGSEGV);
        if (!strcmp(what, "hang")) for (;;) pause();
        return (nvmlReturn_t)atoi(what);
    }
    return NVML_SUCCESS;
}
static nvmlReturn_t called(const char *call, nvmlDevice_t gpu, const void *out) {
    if (!ready) return NVML_ERROR_UNINITIALIZED;
    if ((gpu < gpus || gpu >= gpus + count) && (gpu < slices || gpu >= slices + MAX_GPUS * MAX_SLICES)) return NVML_ERROR_INVALID_ARGUMENT;
    return out ? fault(gpu->faults, call) : NVML_ERROR_INVALID_ARGUMENT;
}
/* Every function about a GPU begins with it; `out` is where the answer goes. */
#define CALL(gpu, out) do { nvmlReturn_t ends = called(__func__, gpu, out); if (ends != NVML_SUCCESS) return ends; } while (0)
#define CALL_OF_NO_GPU(out) do { \
    if (!ready) return NVML_ERROR_UNINITIALIZED; \
    if (!(out)) return NVML_ERROR_INVALID_ARGUMENT; \
    nvmlReturn_t ends = fault(faults, __func__); \
    if (ends != NVML_SUCCESS) return ends; \
} while (0)

static nvmlReturn_t load(void) {
    static char text[1 << 16];
    const char *path = getenv("FAKE_NODE_JSON");
    FILE *file = beside();
    whole = file != NULL;
    if (!file) file = fopen(path ? path : "/etc/node-local/node.json", "r");
    if (!file) return NVML_ERROR_DRIVER_NOT_LOADED;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    struct stat made;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (fstat(fileno(file), &made) == 0)
        age = (count_t)((now.tv_sec - made.st_mtim.tv_sec) * 1000 + (now.tv_nsec - made.st_mtim.tv_nsec) / 1000000);
    fclose(file);
    if (strstr(text, "\"driver\": \"broken\"")) return NVML_ERROR_DRIVER_NOT_LOADED;
    const char *all = text + strlen(text);
    if (!field(text, all, "driver_version", version, sizeof version)) snprintf(version, sizeof version, "%d.65.06", DRIVER);
    if (!field(text, all, "driver_faults", faults, sizeof faults)) *faults = 0;
    count = 0;
    const char *at = strstr(text, "\"gpus\"");
    while (at && count < MAX_GPUS && (at = strchr(at, '{'))) {
        const char *end = strchr(at, '}');
        struct nvmlDevice_st found = {0};
        if (!end || !field(at, end, "uuid", found.uuid, sizeof found.uuid)) break;
        field(at, end, "link", found.link, sizeof found.link);
        field(at, end, "lost", found.lost, sizeof found.lost);
        field(at, end, "serial", found.serial, sizeof found.serial);
        field(at, end, "fabric_cluster", found.cluster, sizeof found.cluster);
        field(at, end, "faults", found.faults, sizeof found.faults);
        for (int i = 0; i < NUMBERS; i++) {
            char number[24];
            if ((found.known[i] = field(at, end, keys[i], number, sizeof number))) found.numbers[i] = atoi(number);
        }
        if (field(at, end, "name", found.name, sizeof found.name) && field(at, end, "pci", found.pci, sizeof found.pci) && visible(found.uuid))
            gpus[count++] = found;
        at = end;
        if (end[1] == ']' || (end[1] == '\n' && strspn(end + 1, " \n") && end[1 + strspn(end + 1, " \n")] == ']')) break;
    }
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&one_at_a_time);
    nvmlReturn_t ends = ready ? NVML_SUCCESS : load();
    pthread_mutex_unlock(&one_at_a_time);
    if (ends == NVML_SUCCESS) ends = fault(faults, __func__);
    if (ends != NVML_SUCCESS) return ends;
    pthread_mutex_lock(&one_at_a_time);
    ready++;
    pthread_mutex_unlock(&one_at_a_time);
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlShutdown(void) {
    if (!ready) return NVML_ERROR_UNINITIALIZED;
    pthread_mutex_lock(&one_at_a_time);
    ready--;
    pthread_mutex_unlock(&one_at_a_time);
    return fault(faults, __func__);
}

static nvmlReturn_t text_out(const char *value, char *out, size_t size) {
    if (strlen(value) + 1 > size) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, value);
    return NVML_SUCCESS;
}
static nvmlReturn_t number(nvmlDevice_t g, int which, unsigned *out) {
    *out = (unsigned)g->numbers[which];
    return g->known[which] ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}
static nvmlReturn_t growing(nvmlDevice_t g, int which, count_t *out) {
    *out = (count_t)g->numbers[which] * age;
    return g->known[which] ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}
const char *nvmlErrorString(nvmlReturn_t code) {
    switch (code) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED: return "GPU requires reset";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}
nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned size) {
    CALL_OF_NO_GPU(out);
    return text_out(version, out, size);
}

/* Which GPUs there are. */
static nvmlReturn_t gone(nvmlDevice_t g) {
    return !*g->lost ? NVML_SUCCESS : strstr(g->lost, "lost") ? NVML_ERROR_GPU_IS_LOST : NVML_ERROR_UNKNOWN;
}
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *out) {
    CALL_OF_NO_GPU(out);
    *out = count;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out) {
    CALL_OF_NO_GPU(out);
    if (index >= count) return NVML_ERROR_INVALID_ARGUMENT;
    CALL(&gpus[index], out);
    *out = &gpus[index];
    return gone(&gpus[index]);
}
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out) {
    CALL_OF_NO_GPU(out);
    for (unsigned i = 0; i < count; i++) {
        CALL(&gpus[i], out); /* it walks over all GPUs */
        if (strcmp(gpus[i].uuid, uuid)) continue;
        *out = &gpus[i];
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pci, nvmlDevice_t *out) {
    CALL_OF_NO_GPU(out);
    for (unsigned i = 0; i < count; i++) {
        if (strcasecmp(gpus[i].pci, pci)) continue;
        CALL(&gpus[i], out);
        *out = &gpus[i];
        return gone(&gpus[i]);
    }
    return NVML_ERROR_NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t g, char *out, unsigned size) {
    CALL(g, out);
    return text_out(g->uuid, out, size);
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t g, char *out, unsigned size) {
    CALL(g, out);
    return text_out(g->name, out, size);
}
nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t g, char *out, unsigned size) {
    CALL(g, out);
    return *g->serial ? text_out(g->serial, out, size) : NVML_ERROR_NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t g, nvmlPciInfo_t *out) {
    CALL(g, out);
    memset(out, 0, sizeof *out);
    return text_out(g->pci, out->busId, sizeof out->busId);
}
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t g, unsigned *current, unsigned *pending) {
    CALL(g, pending);
    *pending = (unsigned)g->numbers[MIG];
    return number(g, MIG, current);
}
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t g, unsigned *out) {
    CALL(g, out);
    *out = g->numbers[MIG] ? 7 : 0;
    return g->known[MIG] ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t g, unsigned index, nvmlDevice_t *out) {
    CALL(g, out);
    if (index >= (unsigned)g->numbers[MIG_DEVICES] || index >= MAX_SLICES) return NVML_ERROR_NOT_FOUND;
    *out = &slices[(g - gpus) * MAX_SLICES + index];
    **out = *g;
    snprintf((*out)->uuid, sizeof (*out)->uuid, "MIG-%.80s-%u", g->uuid, index);
    return NVML_SUCCESS;
}

/* What the driver counts. */
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t g, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    CALL(g, failed);
    *corrected = *uncorrected = 0;
    *pending = (unsigned)g->numbers[REMAP_PENDING];
    *failed = (unsigned)g->numbers[REMAP_FAILED];
    return g->known[REMAP_PENDING] || g->known[REMAP_FAILED] ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t g, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter, count_t *out) {
    (void)counter;
    CALL(g, out);
    int bad = type == NVML_MEMORY_ERROR_TYPE_UNCORRECTED;
    if (bad && g->known[ECC_GROWS]) return growing(g, ECC_GROWS, out);
    *out = bad ? (count_t)g->numbers[ECC] : 0;
    return g->known[ECC] ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}
#if DRIVER >= 550
nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t g, nvmlEccSramErrorStatus_t *out) {
    CALL(g, out);
    if (out->version != nvmlEccSramErrorStatus_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    *out = (nvmlEccSramErrorStatus_t){ .version = out->version };
    return number(g, SRAM_THRESHOLD, &out->bThresholdExceeded);
}
#endif
nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t g, unsigned *out) {
    CALL(g, out);
    count_t grown;
    nvmlReturn_t code = growing(g, REPLAYS_GROW, &grown);
    *out = (unsigned)grown;
    return code;
}
#define A_NUMBER(name, which) nvmlReturn_t name(nvmlDevice_t g, unsigned *out) { CALL(g, out); return number(g, which, out); }
A_NUMBER(nvmlDeviceGetCurrPcieLinkWidth, WIDTH)
A_NUMBER(nvmlDeviceGetMaxPcieLinkWidth, WIDTH_MAX)
A_NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, GENERATION)
A_NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, GENERATION_MAX)
A_NUMBER(nvmlDeviceGetPowerUsage, POWER)
A_NUMBER(nvmlDeviceGetPowerManagementLimit, POWER_LIMIT)
A_NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, POWER_DEFAULT)
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t g, nvmlClockType_t type, unsigned *out) {
    CALL(g, out);
    return type == NVML_CLOCK_SM ? number(g, CLOCK, out) : NVML_ERROR_NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t g, nvmlClockType_t type, unsigned *out) {
    CALL(g, out);
    return type == NVML_CLOCK_SM ? number(g, CLOCK_MAX, out) : NVML_ERROR_NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t g, nvmlEnableState_t *out) {
    CALL(g, out);
    *out = g->numbers[PERSISTENCE] ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return g->known[PERSISTENCE] ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t g, count_t *out) {
    CALL(g, out);
    *out = (count_t)g->numbers[REASONS];
    return g->known[REASONS] ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}
#if DRIVER >= 535
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t g, count_t *out) {
    CALL(g, out);
    return nvmlDeviceGetCurrentClocksThrottleReasons(g, out);
}
#endif
static int lost(const char *uuid) {
    char line[128];
    FILE *file = fopen("/tmp/fake-lost-gpus", "r");
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file)) found = !strncmp(line, uuid, strlen(uuid));
    if (file) fclose(file);
    return found;
}
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t g, nvmlTemperatureSensors_t sensor, unsigned *out) {
    CALL(g, out);
    if (sensor != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
    *out = g->known[TEMPERATURE] ? (unsigned)g->numbers[TEMPERATURE] : 40;
    return lost(g->uuid) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t g, unsigned *size, nvmlProcessInfo_v2_t *out) {
    CALL(g, size);
    unsigned running = (unsigned)g->numbers[PROCESSES], room = *size;
    *size = running;
    if (!g->known[PROCESSES]) return NVML_ERROR_NOT_SUPPORTED;
    if (running > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < running; i++) out[i] = (nvmlProcessInfo_v2_t){ 4000 + i, 1 << 30, ~0u, ~0u };
    return NVML_SUCCESS;
}
#if DRIVER >= 510
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t g, unsigned *size, nvmlProcessInfo_t *out) {
    CALL(g, size);
    return nvmlDeviceGetComputeRunningProcesses_v2(g, size, out);
}
#endif

/* NVLink. */
nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuP2PCapsIndex_t capability, nvmlGpuP2PStatus_t *out) {
    (void)capability;
    CALL(a, out);
    CALL(b, out);
    *out = !strcmp(a->link, "nvlink") && !strcmp(b->link, "nvlink") ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuTopologyLevel_t *out) {
    CALL(a, out);
    CALL(b, out);
    *out = (nvmlGpuTopologyLevel_t)a->numbers[ANCESTOR];
    return a->known[ANCESTOR] ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}
static nvmlReturn_t a_link(nvmlDevice_t g, unsigned link) {
    return !g->known[LINKS] || link >= (unsigned)g->numbers[LINKS] ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t g, unsigned link, nvmlEnableState_t *up) {
    CALL(g, up);
    *up = !g->known[LINKS_UP] || link < (unsigned)g->numbers[LINKS_UP] ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return a_link(g, link);
}
nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t g, unsigned link, nvmlIntNvLinkDeviceType_t *out) {
    CALL(g, out);
    *out = (nvmlIntNvLinkDeviceType_t)g->numbers[LINK_ENDS];
    return g->known[LINK_ENDS] ? a_link(g, link) : NVML_ERROR_NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t g, unsigned link, nvmlPciInfo_t *out) {
    CALL(g, out);
    if (a_link(g, link) != NVML_SUCCESS || g->numbers[LINK_ENDS] != NVML_NVLINK_DEVICE_TYPE_GPU) return NVML_ERROR_NOT_SUPPORTED;
    memset(out, 0, sizeof *out); /* each link goes to another GPU, in turn */
    return text_out(gpus[(g - gpus + 1 + (count > 1 ? link % (count - 1) : 0)) % count].pci, out->busId, sizeof out->busId);
}
nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t g, unsigned link, nvmlNvLinkErrorCounter_t counter, count_t *out) {
    CALL(g, out);
    *out = 0;
    if (g->known[LINK_FIELDS]) return NVML_ERROR_NOT_SUPPORTED;
    if (counter == NVML_NVLINK_ERROR_DL_RECOVERY && link == 5) return growing(g, RECOVERY_GROWS, out);
    if (counter == NVML_NVLINK_ERROR_DL_CRC_FLIT && link == 5) return growing(g, CRC_GROWS, out);
    return NVML_ERROR_NOT_SUPPORTED;
}
static nvmlReturn_t a_field(nvmlDevice_t g, nvmlFieldValue_t *value) {
    value->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    switch (value->fieldId) {
    case NVML_FI_DEV_NVLINK_LINK_COUNT: return number(g, LINKS, &value->value.uiVal);
    case NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: return number(g, LINK_SPEED, &value->value.uiVal);
#if DRIVER >= 570
    case NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: return number(g, RECOVERY, &value->value.uiVal);
    case NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS:
    case NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS:
        if (!g->known[LINK_FIELDS] || a_link(g, value->scopeId) != NVML_SUCCESS) return NVML_ERROR_NOT_SUPPORTED;
        value->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
        return growing(g, value->fieldId == NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS ? CRC_GROWS : RECOVERY_GROWS, &value->value.ullVal);
#endif
    default: return NVML_ERROR_NOT_SUPPORTED;
    }
}
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t g, int size, nvmlFieldValue_t *values) {
    CALL(g, values);
    for (int i = 0; i < size; i++) values[i].nvmlReturn = a_field(g, &values[i]);
    return NVML_SUCCESS;
}

/* The fabric beyond the node. */
#if DRIVER >= 525
static nvmlReturn_t fabric(nvmlDevice_t g, nvmlGpuFabricInfo_t *out) {
    *out = (nvmlGpuFabricInfo_t){
        .state = (nvmlGpuFabricState_t)g->numbers[FABRIC_STATE],
        .status = (nvmlReturn_t)g->numbers[FABRIC_STATUS],
        .cliqueId = (unsigned)g->numbers[FABRIC_CLIQUE],
    };
    for (int i = 0; i < NVML_GPU_FABRIC_UUID_LEN && strlen(g->cluster) == 2 * NVML_GPU_FABRIC_UUID_LEN; i++)
        sscanf(g->cluster + 2 * i, "%2hhx", &out->clusterUuid[i]);
    return g->known[FABRIC_STATE] ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t g, nvmlGpuFabricInfo_t *out) {
    CALL(g, out);
    return fabric(g, out);
}
#endif
#if DRIVER >= 550
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t g, nvmlGpuFabricInfoV_t *out) {
    CALL(g, out);
    unsigned asked = out->version;
    if (asked != nvmlGpuFabricInfo_v2 && (DRIVER < 580 || asked != nvmlGpuFabricInfo_v3)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlGpuFabricInfo_t known;
    nvmlReturn_t code = fabric(g, &known);
    if (code != NVML_SUCCESS) return code;
    nvmlGpuFabricInfo_v3_t all = {
        .version = asked, .status = known.status, .cliqueId = known.cliqueId, .state = known.state, .healthMask = (unsigned)g->numbers[FABRIC_HEALTH],
    };
    memcpy(all.clusterUuid, known.clusterUuid, sizeof all.clusterUuid);
    memcpy(out, &all, asked & 0xffffff); /* version 3 begins like version 2; the low bytes of a version are the size */
    return NVML_SUCCESS;
}
#endif

/* Events. */
nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *out) {
    CALL_OF_NO_GPU(out);
    *out = &events;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t g, count_t types, nvmlEventSet_t set) {
    CALL(g, set);
    return types & nvmlEventTypeXidCriticalError ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *out, unsigned milliseconds) {
    (void)milliseconds;
    CALL_OF_NO_GPU(set ? out : NULL);
    for (unsigned i = 0; i < count; i++) {
        if (!gpus[i].known[XID]) continue;
        *out = (nvmlEventData_t){ &gpus[i], nvmlEventTypeXidCriticalError, (count_t)gpus[i].numbers[XID], ~0u, ~0u };
        gpus[i].known[XID] = 0;
        return NVML_SUCCESS;
    }
    return NVML_ERROR_TIMEOUT;
}
