/* Which places of the C libraries a run comes to: they are built by `-fsanitize-coverage=trace-pc`, which calls this at each of
   them, and libFuzzer looks at the counters of this section as at its own. libFuzzer's own function of that name does nothing:
   fuzzers are linked with `--wrap`, and what is built on the way has the weak one. */
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
