/* A stand-in for libnvidia-ml.so.1: the calls that rip makes, answered from a profile (profile.h).
 * A call that is not here is, to pynvml, one that the driver is too old for. */
#include "profile.h"

enum { NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, INVALID_ARGUMENT = 2 };

/* A handle is 1000 + 100 * GPU, and for its slices 1 + their place more. */
typedef void *Device;
static int gpu_of(Device device) { return (int)((intptr_t)device - 1000) / 100; }
static int slice_of(Device device) { return (int)((intptr_t)device - 1000) % 100 - 1; }
static Device handle_of(int gpu, int slice) { return (Device)(intptr_t)(1000 + 100 * gpu + slice + 1); }

static const char *property(Device device, const char *name) {
  int slice = slice_of(device);
  if (slice < 0) return gpu_value(gpu_of(device), name);
  char full[128];
  snprintf(full, sizeof full, "slice.%d.%s", slice, name);
  return gpu_value(gpu_of(device), full);
}

static int text(const char *value, char *buffer, unsigned length) {
  if (!value) return NOT_SUPPORTED;
  snprintf(buffer, length, "%s", value);
  return 0;
}

static int number(Device device, const char *name, unsigned *value) {
  const char *found = property(device, name);
  if (!found) return NOT_SUPPORTED;
  *value = (unsigned)strtoul(found, NULL, 0);
  return 0;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; PLANNED(-1); return 0; }
int nvmlShutdown(void) { PLANNED(-1); return 0; }
const char *nvmlErrorString(int code) { (void)code; return "an error of the stand-in"; }

int nvmlSystemGetDriverVersion(char *buffer, unsigned length) { PLANNED(-1); return text(value_of("driver"), buffer, length); }
int nvmlSystemGetNVMLVersion(char *buffer, unsigned length) { PLANNED(-1); return text(value_of("nvml"), buffer, length); }
int nvmlSystemGetCudaDriverVersion(int *version) {
  PLANNED(-1);
  const char *found = value_of("cuda");
  if (!found) return NOT_SUPPORTED;
  *version = atoi(found);
  return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
  PLANNED(-1);
  const char *found = value_of("count");
  *count = found ? (unsigned)atoi(found) : 0;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
  PLANNED((int)index);
  *device = handle_of((int)index, -1);
  return 0;
}

#define TEXT(call, name) \
  int call(Device device, char *buffer, unsigned length) { PLANNED(gpu_of(device)); return text(property(device, name), buffer, length); }
#define NUMBER(call, name) \
  int call(Device device, unsigned *value) { PLANNED(gpu_of(device)); return number(device, name, value); }
#define TWO_NUMBERS(call, one, other)                            \
  int call(Device device, unsigned *first, unsigned *second) {   \
    PLANNED(gpu_of(device));                                     \
    int code = number(device, one, first);                       \
    return code ? code : number(device, other, second);          \
  }
#define CLOCK(call, name)                                                            \
  int call(Device device, unsigned kind, unsigned *value) {                          \
    PLANNED(gpu_of(device));                                                         \
    return number(device, kind == 2 ? name ".memory" : name ".sm", value);           \
  }

TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
int nvmlDeviceGetGspFirmwareVersion(Device device, char *buffer) { PLANNED(gpu_of(device)); return text(property(device, "gsp"), buffer, 64); }
NUMBER(nvmlDeviceGetNumGpuCores, "cuda_cores")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence")
NUMBER(nvmlDeviceGetComputeMode, "compute_mode")
NUMBER(nvmlDeviceGetVirtualizationMode, "virtualization")
NUMBER(nvmlDeviceGetPowerManagementLimit, "power_limit_mw")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power_limit_mw")
NUMBER(nvmlDeviceGetPowerUsage, "power_mw")
NUMBER(nvmlDeviceGetPerformanceState, "performance_state")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
NUMBER(nvmlDeviceGetNumaNodeId, "numa_node")
NUMBER(nvmlDeviceGetMaxMigDeviceCount, "slices")
NUMBER(nvmlDeviceGetGpuInstanceId, "gpu_instance")
NUMBER(nvmlDeviceGetComputeInstanceId, "compute_instance")
TWO_NUMBERS(nvmlDeviceGetMigMode, "mig", "mig_pending")
TWO_NUMBERS(nvmlDeviceGetEccMode, "ecc", "ecc_pending")
TWO_NUMBERS(nvmlDeviceGetCudaComputeCapability, "major", "minor")
/* One address: a structure of two numbers, of which the first is the GPU's. */
NUMBER(nvmlDeviceGetUtilizationRates, "utilization")
CLOCK(nvmlDeviceGetApplicationsClock, "application_clock")
CLOCK(nvmlDeviceGetMaxClockInfo, "max_clock")
CLOCK(nvmlDeviceGetClockInfo, "clock")

int nvmlDeviceGetTemperature(Device device, unsigned sensor, unsigned *value) { (void)sensor; PLANNED(gpu_of(device)); return number(device, "temperature", value); }
int nvmlDeviceGetCurrentClocksEventReasons(Device device, unsigned long long *reasons) { PLANNED(gpu_of(device)); *reasons = 0; return 0; }
int nvmlDeviceGetTotalEccErrors(Device device, int kind, int counter, unsigned long long *count) { (void)kind; (void)counter; PLANNED(gpu_of(device)); *count = 0; return 0; }

struct Memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(Device device, struct Memory *memory) {
  PLANNED(gpu_of(device));
  const char *total = property(device, "memory");
  if (!total) return NOT_SUPPORTED;
  memory->total = strtoull(total, NULL, 0);
  const char *used = property(device, "memory_used");
  memory->used = used ? strtoull(used, NULL, 0) : 0;
  memory->free = memory->total - memory->used;
  return 0;
}

struct Pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(Device device, struct Pci *pci) {
  PLANNED(gpu_of(device));
  memset(pci, 0, sizeof *pci);
  return text(property(device, "pci"), pci->bus_id, sizeof pci->bus_id);
}

int nvmlDeviceGetCpuAffinity(Device device, unsigned size, unsigned long *words) {
  PLANNED(gpu_of(device));
  const char *mask = property(device, "cpus");
  if (!mask) return NOT_SUPPORTED;
  memset(words, 0, size * sizeof *words);
  if (size) words[0] = strtoul(mask, NULL, 0);
  return 0;
}

/* Links: "links" of them, all up but those of "links_down" (a mask), all to "link_remote" of "link_kind". */
static int link_code(Device device, unsigned link) {
  const char *links = property(device, "links");
  if (!links) return NOT_SUPPORTED;
  return link < (unsigned)atoi(links) ? 0 : INVALID_ARGUMENT;
}
int nvmlDeviceGetNvLinkState(Device device, unsigned link, unsigned *active) {
  PLANNED(gpu_of(device));
  int code = link_code(device, link);
  if (code) return code;
  const char *down = property(device, "links_down");
  *active = !(down && strtoul(down, NULL, 0) >> link & 1);
  return 0;
}
int nvmlDeviceGetNvLinkVersion(Device device, unsigned link, unsigned *version) { (void)link; PLANNED(gpu_of(device)); *version = 4; return 0; }
int nvmlDeviceGetNvLinkRemoteDeviceType(Device device, unsigned link, unsigned *kind) { (void)link; PLANNED(gpu_of(device)); return number(device, "link_kind", kind); }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device device, unsigned link, struct Pci *pci) {
  PLANNED(gpu_of(device));
  memset(pci, 0, sizeof *pci);
  char name[32];
  snprintf(name, sizeof name, "link_remote.%u", link % 4);
  return text(property(device, name), pci->bus_id, sizeof pci->bus_id);
}

static int of_pair(Device one, Device other, const char *name, unsigned *value) {
  const char *found = value_of("pair.%d-%d.%s", gpu_of(one), gpu_of(other), name);
  if (!found) found = value_of("pair.*.%s", name);
  if (!found) return NOT_SUPPORTED;
  *value = (unsigned)atoi(found);
  return 0;
}
int nvmlDeviceGetTopologyCommonAncestor(Device one, Device other, unsigned *level) { PLANNED(gpu_of(one)); return of_pair(one, other, "ancestor", level); }
int nvmlDeviceGetP2PStatus(Device one, Device other, unsigned capability, unsigned *status) {
  PLANNED(gpu_of(one));
  return of_pair(one, other, capability == 2 ? "p2p_nvlink" : "p2p_read", status);
}

struct Fabric { unsigned version; unsigned char cluster[16]; unsigned status, clique; unsigned char state; unsigned health; };
int nvmlDeviceGetGpuFabricInfoV(Device device, struct Fabric *fabric) {
  PLANNED(gpu_of(device));
  const char *state = property(device, "fabric");
  if (!state) return NOT_SUPPORTED;
  fabric->state = (unsigned char)atoi(state);
  const char *cluster = property(device, "fabric_cluster");
  if (cluster) uuid_bytes(cluster, fabric->cluster);
  fabric->status = 0;
  fabric->clique = 1;
  fabric->health = 2;
  return 0;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *slice) {
  PLANNED(gpu_of(device));
  *slice = handle_of(gpu_of(device), (int)index);
  return property(*slice, "name") ? 0 : NOT_FOUND;
}
struct Attributes { unsigned sms, copy, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices; unsigned long long memory; };
int nvmlDeviceGetAttributes_v2(Device device, struct Attributes *attributes) {
  PLANNED(gpu_of(device));
  if (slice_of(device) < 0) return NOT_SUPPORTED; /* as the real one: for slices only */
  memset(attributes, 0, sizeof *attributes);
  unsigned memory = 0;
  int code = number(device, "sms", &attributes->sms);
  if (!code) code = number(device, "memory_mib", &memory);
  if (!code) code = number(device, "gpu_slices", &attributes->gpu_slices);
  if (!code) code = number(device, "compute_slices", &attributes->compute_slices);
  attributes->memory = memory;
  return code;
}

/* One process a GPU at most: "process" is its pid, "process_memory" its bytes (absent: not told). */
struct Process { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; };
int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, struct Process *processes) {
  PLANNED(gpu_of(device));
  const char *pid = property(device, "process");
  if (!pid) {
    *count = 0;
    return 0;
  }
  unsigned room = *count;
  *count = 1;
  if (!room || !processes) return INSUFFICIENT_SIZE;
  memset(processes, 0, sizeof *processes);
  processes->pid = (unsigned)atoi(pid);
  const char *memory = property(device, "process_memory");
  processes->memory = memory ? strtoull(memory, NULL, 0) : ~0ull;
  return 0;
}
