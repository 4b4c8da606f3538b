/* Counts the places of the C libraries that a run reaches. The libraries are built with
   `-fsanitize-coverage=trace-pc`, which calls this function at each place. libFuzzer reads the
   counters of this section like its own. libFuzzer's own function of that name does nothing, so
   fuzzers are linked with `--wrap`; programs that the build itself runs use the weak one. */
#include <stdint.h>

#define COUNT (1 << 16)

__attribute__((section("__libfuzzer_extra_counters"), used)) static uint8_t counters[COUNT];

__attribute__((no_sanitize_address)) void __wrap___sanitizer_cov_trace_pc(void);
__attribute__((weak)) void __sanitizer_cov_trace_pc(void);

__attribute__((no_sanitize_address)) void __wrap___sanitizer_cov_trace_pc(void) {
  uintptr_t place = (uintptr_t)__builtin_return_address(0);
  counters[(place ^ (place >> 16)) % COUNT]++;
}

void __sanitizer_cov_trace_pc(void) {}
