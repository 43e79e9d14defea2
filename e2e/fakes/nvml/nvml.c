/* A stand-in for libnvidia-ml.so.1 with just the functions that Preflight's binding calls.
 *
 * It reads node.json (FAKE_NODE_JSON, else /etc/node-local/node.json) and shows the GPUs named in NVIDIA_VISIBLE_DEVICES (by a
 * device plugin, or by a reference of the pod's; `all` are all) and in FAKE_GPU_* (by claims, a variable each). The
 * reader is a scanner, not a JSON parser: within "gpus" each object is expected to hold "uuid", "name" and "pci" as strings.
 * Further strings say what the driver counts (see `struct gpu`); `*_grows` are counters that are one higher after each nvmlInit. "lost" is
 * what the driver says of a GPU that it cannot reach. What a GPU does not say is not supported on it. A GPU named
 * in the container's /tmp/fake-lost-gpus is lost: the fake all_reduce_perf writes there what fell off the bus under its load.
 *
 * A driver.json beside the library itself comes first, and then all its GPUs are shown: so a folder stands in for a whole driver. Of such a
 * node "driver_version" says the version, and of a GPU "fabric_state", "fabric_status", "fabric_cluster" (32 hexadecimal digits) and
 * "fabric_clique" what NVLink between nodes is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

extern char **environ;

typedef int nvmlReturn_t;
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, DRIVER_NOT_LOADED = 9, LOST = 15, VERSION_MISMATCH = 25, UNKNOWN = 999 };
enum { P2P_OK = 0, P2P_NOT_SUPPORTED = 5 };
enum { MAX_GPUS = 64 };

enum { MIG, REMAP_PENDING, REMAP_FAILED, ECC, ECC_GROWS, LINKS, LINKS_UP, RECOVERY_GROWS, CRC_GROWS, REPLAYS_GROW, WIDTH, WIDTH_MAX, GENERATION,
       GENERATION_MAX, PROCESSES, REASONS, RECOVERY, FABRIC_STATE, FABRIC_STATUS, FABRIC_CLIQUE, FABRIC_HEALTH, SRAM_THRESHOLD, NUMBERS };
static const char *keys[NUMBERS] = { "mig", "remap_pending", "remap_failed", "ecc", "ecc_grows", "links", "links_up", "link_recovery_grows",
                                     "link_crc_grows", "pcie_replays_grow", "pcie_width", "pcie_width_max", "pcie_generation",
                                     "pcie_generation_max", "processes", "reasons", "recovery_action",
                                     "fabric_state", "fabric_status", "fabric_clique", "fabric_health", "sram_threshold" };
struct gpu { char uuid[96], name[96], pci[32], link[16], lost[64], serial[32], cluster[40]; int known[NUMBERS], numbers[NUMBERS]; };
static unsigned looks;
static struct gpu gpus[MAX_GPUS];
static unsigned count;
static int ready, whole;
static char version[32] = "580.65.06";

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

nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    static char text[1 << 16];
    const char *path = getenv("FAKE_NODE_JSON");
    FILE *file = beside();
    whole = file != NULL;
    if (!file) file = fopen(path ? path : "/etc/node-local/node.json", "r");
    if (!file) return DRIVER_NOT_LOADED;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    if (strstr(text, "\"driver\": \"broken\"")) return DRIVER_NOT_LOADED;
    field(text, text + strlen(text), "driver_version", version, sizeof version);
    count = 0;
    looks++;
    const char *at = strstr(text, "\"gpus\"");
    while (at && count < MAX_GPUS && (at = strchr(at, '{'))) {
        const char *end = strchr(at, '}');
        struct gpu found = {0};
        if (!end || !field(at, end, "uuid", found.uuid, sizeof found.uuid)) break;
        field(at, end, "link", found.link, sizeof found.link);
        field(at, end, "lost", found.lost, sizeof found.lost);
        field(at, end, "serial", found.serial, sizeof found.serial);
        field(at, end, "fabric_cluster", found.cluster, sizeof found.cluster);
        for (int i = 0; i < NUMBERS; i++) {
            char number[24];
            if ((found.known[i] = field(at, end, keys[i], number, sizeof number))) found.numbers[i] = atoi(number);
        }
        if (field(at, end, "name", found.name, sizeof found.name) && field(at, end, "pci", found.pci, sizeof found.pci) && visible(found.uuid))
            gpus[count++] = found;
        at = end;
        if (end[1] == ']' || (end[1] == '\n' && strspn(end + 1, " \n") && end[1 + strspn(end + 1, " \n")] == ']')) break;
    }
    ready = 1;
    return OK;
}
static nvmlReturn_t gone(struct gpu *g) { return !*g->lost ? OK : strstr(g->lost, "lost") ? LOST : UNKNOWN; }
nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlShutdown(void) { ready = 0; return OK; }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *out) {
    if (!ready) return UNINITIALIZED;
    *out = count;
    return OK;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, struct gpu **out) {
    if (!ready) return UNINITIALIZED;
    if (index >= count) return INVALID;
    *out = &gpus[index];
    return gone(&gpus[index]);
}
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, struct gpu **out) {
    if (!ready) return UNINITIALIZED;
    for (unsigned i = 0; i < count; i++)
        if (!strcmp(gpus[i].uuid, uuid)) {
            *out = &gpus[i];
            return OK;
        }
    return NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetP2PStatus(struct gpu *a, struct gpu *b, unsigned capability, unsigned *out) {
    (void)capability;
    *out = !strcmp(a->link, "nvlink") && !strcmp(b->link, "nvlink") ? P2P_OK : P2P_NOT_SUPPORTED;
    return OK;
}
static int lost(const char *uuid) {
    char line[128];
    FILE *file = fopen("/tmp/fake-lost-gpus", "r");
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file)) found = !strncmp(line, uuid, strlen(uuid));
    if (file) fclose(file);
    return found;
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pci, struct gpu **out) {
    if (!ready) return UNINITIALIZED;
    for (unsigned i = 0; i < count; i++)
        if (!strcasecmp(gpus[i].pci, pci)) {
            *out = &gpus[i];
            return gone(&gpus[i]);
        }
    return NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetTemperature(struct gpu *g, unsigned sensor, unsigned *out) {
    (void)sensor;
    *out = 40;
    return lost(g->uuid) ? LOST : OK;
}
static nvmlReturn_t text_out(const char *value, char *out, unsigned size) {
    if (strlen(value) + 1 > size) return SMALL;
    strcpy(out, value);
    return OK;
}
nvmlReturn_t nvmlDeviceGetUUID(struct gpu *g, char *out, unsigned size) { return text_out(g->uuid, out, size); }
nvmlReturn_t nvmlDeviceGetName(struct gpu *g, char *out, unsigned size) { return text_out(g->name, out, size); }

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
nvmlReturn_t nvmlDeviceGetPciInfo_v3(struct gpu *g, struct pci *out) {
    memset(out, 0, sizeof *out);
    return text_out(g->pci, out->bus_id, sizeof out->bus_id);
}
/* What the driver counts. */
static nvmlReturn_t number(struct gpu *g, int which, unsigned *out) {
    *out = g->numbers[which];
    return g->known[which] ? OK : NOT_SUPPORTED;
}
static nvmlReturn_t growing(struct gpu *g, int which, unsigned long long *out) {
    *out = g->numbers[which] ? g->numbers[which] * looks : 0;
    return g->known[which] ? OK : NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetSerial(struct gpu *g, char *out, unsigned size) { return *g->serial ? text_out(g->serial, out, size) : NOT_SUPPORTED; }
nvmlReturn_t nvmlDeviceGetMigMode(struct gpu *g, unsigned *current, unsigned *pending) {
    *pending = g->numbers[MIG];
    return number(g, MIG, current);
}
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(struct gpu *g, unsigned *out) { return number(g, MIG, out); }
nvmlReturn_t nvmlDeviceGetRemappedRows(struct gpu *g, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    *corrected = *uncorrected = 0;
    *pending = g->numbers[REMAP_PENDING];
    *failed = g->numbers[REMAP_FAILED];
    return g->known[REMAP_PENDING] || g->known[REMAP_FAILED] ? OK : NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetTotalEccErrors(struct gpu *g, unsigned type, unsigned counter, unsigned long long *out) {
    (void)counter;
    if (type == 1 && g->known[ECC_GROWS]) return growing(g, ECC_GROWS, out);
    *out = type == 1 ? g->numbers[ECC] : 0;
    return g->known[ECC] ? OK : NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetNvLinkState(struct gpu *g, unsigned link, unsigned *up) {
    if (!g->known[LINKS] || link >= (unsigned)g->numbers[LINKS]) return NOT_SUPPORTED;
    *up = !g->known[LINKS_UP] || link < (unsigned)g->numbers[LINKS_UP];
    return OK;
}
nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(struct gpu *g, unsigned link, unsigned counter, unsigned long long *out) {
    *out = 0;
    if (counter == 1 && link == 5) return growing(g, RECOVERY_GROWS, out);
    if (counter == 2 && link == 5) return growing(g, CRC_GROWS, out);
    return NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetPcieReplayCounter(struct gpu *g, unsigned *out) {
    unsigned long long grown;
    nvmlReturn_t code = growing(g, REPLAYS_GROW, &grown);
    *out = grown;
    return code;
}
nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(struct gpu *g, unsigned *out) { return number(g, WIDTH, out); }
nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(struct gpu *g, unsigned *out) { return number(g, WIDTH_MAX, out); }
nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(struct gpu *g, unsigned *out) { return number(g, GENERATION, out); }
nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(struct gpu *g, unsigned *out) { return number(g, GENERATION_MAX, out); }
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(struct gpu *g, unsigned long long *out) {
    *out = g->numbers[REASONS];
    return g->known[REASONS] ? OK : NOT_SUPPORTED;
}
struct process { unsigned pid; unsigned long long memory; unsigned instance, compute; };
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(struct gpu *g, unsigned *size, struct process *out) {
    unsigned running = g->numbers[PROCESSES], room = *size;
    *size = running;
    if (!g->known[PROCESSES]) return NOT_SUPPORTED;
    if (running > room) return SMALL;
    for (unsigned i = 0; i < running; i++) out[i] = (struct process){ 4000 + i, 1 << 30, ~0u, ~0u };
    return OK;
}
struct value { unsigned id, scope; long long timestamp, latency; unsigned type; nvmlReturn_t code; union { double d; unsigned ui; unsigned long long ull; } value; };
nvmlReturn_t nvmlDeviceGetFieldValues(struct gpu *g, int size, struct value *values) {
    for (int i = 0; i < size; i++) {
        values[i].code = values[i].id == 230 ? number(g, RECOVERY, &values[i].value.ui) : NOT_SUPPORTED; /* NVML_FI_DEV_GET_GPU_RECOVERY_ACTION */
        values[i].type = 1;
    }
    return OK;
}
const char *nvmlErrorString(nvmlReturn_t code) {
    return code == NOT_SUPPORTED ? "Not Supported" : code == OK ? "Success" : code == DRIVER_NOT_LOADED ? "Driver Not Loaded" : code == LOST ? "GPU is lost" : "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned size) { return ready ? text_out(version, out, size) : UNINITIALIZED; }

struct fabric { unsigned char cluster[16]; nvmlReturn_t status; unsigned clique; unsigned char state; };
struct fabric_v2 { unsigned version; unsigned char cluster[16]; nvmlReturn_t status; unsigned clique; unsigned char state; unsigned health; };
struct fabric_v3 { unsigned version; unsigned char cluster[16]; nvmlReturn_t status; unsigned clique; unsigned char state; unsigned health; unsigned char summary; };
/* nvml.h: NVML_STRUCT_VERSION */
#define VERSION(of, number) (unsigned)(sizeof(struct of) | (number) << 24)

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(struct gpu *g, struct fabric *out) {
    if (!ready) return UNINITIALIZED;
    if (!g->known[FABRIC_STATE]) return NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    out->state = (unsigned char)g->numbers[FABRIC_STATE];
    out->status = g->numbers[FABRIC_STATUS];
    out->clique = (unsigned)g->numbers[FABRIC_CLIQUE];
    for (int i = 0; i < 16 && strlen(g->cluster) == 32; i++) {
        unsigned byte = 0;
        sscanf(g->cluster + 2 * i, "%2x", &byte);
        out->cluster[i] = (unsigned char)byte;
    }
    return OK;
}
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(struct gpu *g, struct fabric_v2 *out) {
    if (!ready) return UNINITIALIZED;
    unsigned asked = out->version;
    if (asked != VERSION(fabric_v2, 2) && asked != VERSION(fabric_v3, 3)) return VERSION_MISMATCH;
    struct fabric known;
    nvmlReturn_t code = nvmlDeviceGetGpuFabricInfo(g, &known);
    if (code != OK) return code;
    *out = (struct fabric_v2){ .version = asked, .status = known.status, .clique = known.clique, .state = known.state, .health = g->numbers[FABRIC_HEALTH] };
    memcpy(out->cluster, known.cluster, sizeof known.cluster);
    if (asked == VERSION(fabric_v3, 3)) ((struct fabric_v3 *)out)->summary = 0; /* version 3 begins like version 2 */
    return OK;
}
struct sram { unsigned version; unsigned long long counts[11]; unsigned exceeded; };
nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(struct gpu *g, struct sram *out) {
    if (!ready) return UNINITIALIZED;
    if (out->version != VERSION(sram, 1)) return VERSION_MISMATCH;
    memset(out->counts, 0, sizeof out->counts);
    return number(g, SRAM_THRESHOLD, &out->exceeded);
}
