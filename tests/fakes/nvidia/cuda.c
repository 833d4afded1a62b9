/* A stand-in for libcuda.so.1: devices in the order of the profile's "visible" (NVML's numbers, separated by
 * commas), which CUDA_VISIBLE_DEVICES replaces. cuda.bindings looks every call up through cuGetProcAddress. */
#include "profile.h"
#include <dlfcn.h>

enum { INVALID_VALUE = 1, NO_DEVICE = 100, SYMBOL_NOT_FOUND = 500 };

static int ordered[64];

/* Fills `ordered`; returns the number of devices. */
static int devices(void) {
  const char *listed = getenv("CUDA_VISIBLE_DEVICES");
  if (!listed) listed = value_of("visible");
  char copy[256];
  snprintf(copy, sizeof copy, "%s", listed ? listed : "");
  int count = 0;
  for (char *part = strtok(copy, ","); part && count < 64; part = strtok(NULL, ",")) ordered[count++] = atoi(part);
  return count;
}

static const char *property(int ordinal, const char *name) {
  return ordinal < devices() ? gpu_value(ordered[ordinal], name) : NULL;
}

int cuInit(unsigned flags) { (void)flags; PLANNED(-1); return devices() ? 0 : NO_DEVICE; }
int cuDriverGetVersion(int *version) {
  PLANNED(-1);
  const char *found = value_of("cuda");
  *version = found ? atoi(found) : 0;
  return 0;
}
int cuDeviceGetCount(int *count) { PLANNED(-1); *count = devices(); return 0; }
int cuDeviceGet(int *device, int ordinal) { PLANNED(ordinal); *device = ordinal; return 0; }

static int text(const char *value, char *buffer, int length) {
  if (!value) return INVALID_VALUE;
  snprintf(buffer, (size_t)length, "%s", value);
  return 0;
}
int cuDeviceGetName(char *buffer, int length, int device) {
  PLANNED(device);
  const char *own = property(device, "cuda_name"); /* of a slice */
  return text(own ? own : property(device, "name"), buffer, length);
}
int cuDeviceGetPCIBusId(char *buffer, int length, int device) { PLANNED(device); return text(property(device, "cuda_pci"), buffer, length); }
int cuDeviceGetUuid_v2(unsigned char *bytes, int device) {
  PLANNED(device);
  const char *own = property(device, "cuda_uuid");
  uuid_bytes(own ? own : property(device, "uuid"), bytes);
  return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  PLANNED(device);
  static const struct { int number; const char *name; } known[] = {
      {16, "sms"}, {75, "major"}, {76, "minor"}, {38, "l2"}, {37, "bus_bits"}, {82, "registers"},
      {97, "shared_block"}, {81, "shared_sm"}, {39, "threads_sm"}};
  for (size_t place = 0; place < sizeof known / sizeof *known; place++)
    if (known[place].number == attribute) {
      const char *found = property(device, known[place].name);
      if (!found) return INVALID_VALUE;
      *value = atoi(found);
      return 0;
    }
  return INVALID_VALUE;
}

/* The newest variant of a call that the stand-in has, as the real one answers for a high version. */
int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status) {
  (void)version;
  (void)flags;
  char newest[128];
  snprintf(newest, sizeof newest, "%s_v2", symbol);
  *function = dlsym(RTLD_DEFAULT, newest);
  if (!*function) *function = dlsym(RTLD_DEFAULT, symbol);
  if (status) *status = *function ? 0 : 1;
  return *function ? 0 : SYMBOL_NOT_FOUND;
}
int cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}
