/* What a stand-in library answers: lines "key = value" of the file that RIP_STAND_IN_GPUS names.
 *
 * gpu.0.name = NVIDIA H200          a property of one GPU; gpu.*.name holds for all
 * fail.nvmlDeviceGetSerial = 3      a call that returns this code; fail.CALL.2 for GPU 2 only
 * hang.cuInit = 1                   a call that never returns
 * crash.nvmlDeviceGetName = 1       a call that ends the process
 * The names of all calls are appended to the file that RIP_STAND_IN_LOG names. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char stand_in_line[1024];

/* The value of a key, or NULL. */
static const char *value_of(const char *format, ...) {
  char key[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(key, sizeof key, format, arguments);
  va_end(arguments);
  const char *path = getenv("RIP_STAND_IN_GPUS");
  FILE *file = path ? fopen(path, "r") : NULL;
  const char *found = NULL;
  while (file && !found && fgets(stand_in_line, sizeof stand_in_line, file)) {
    char *equals = strstr(stand_in_line, " = ");
    if (!equals) continue;
    *equals = 0;
    if (strcmp(stand_in_line, key) == 0) {
      found = equals + 3;
      equals[3 + strcspn(equals + 3, "\n")] = 0;
    }
  }
  if (file) fclose(file);
  return found;
}

static const char *gpu_value(int gpu, const char *name) {
  const char *own = value_of("gpu.%d.%s", gpu, name);
  return own ? own : value_of("gpu.*.%s", name);
}

/* Note the call, then do what the profile plans for it. Returns the code to fail with, or 0. */
static int planned(const char *call, int gpu) {
  const char *log = getenv("RIP_STAND_IN_LOG");
  FILE *file = log ? fopen(log, "a") : NULL;
  if (file) {
    fprintf(file, "%s\n", call);
    fclose(file);
  }
  if (value_of("hang.%s", call) || value_of("hang.%s.%d", call, gpu))
    for (;;) pause();
  if (value_of("crash.%s", call)) raise(SIGSEGV);
  const char *code = value_of("fail.%s.%d", call, gpu);
  if (!code) code = value_of("fail.%s", call);
  return code ? atoi(code) : 0;
}

#define PLANNED(gpu)                          \
  do {                                        \
    int code_ = planned(__func__, gpu);       \
    if (code_) return code_;                  \
  } while (0)

/* 16 bytes from the hexadecimal digits of a UUID, whatever stands before and between them. */
static void uuid_bytes(const char *text, unsigned char *bytes) {
  const char *digits = strlen(text) > 36 ? text + strlen(text) - 36 : text;
  for (int place = 0; place < 16 && *digits; place++) {
    while (*digits == '-') digits++;
    unsigned byte = 0;
    sscanf(digits, "%2x", &byte);
    bytes[place] = (unsigned char)byte;
    digits += 2;
  }
}
