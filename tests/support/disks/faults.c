/* Makes system calls of a process fail, for tests: preloaded (LD_PRELOAD), before the C library's own.
 *
 * FAULT_PATH    part of the path of the affected files
 * FAULT_CALL    pwrite64, pread64, fdatasync, fsync, ftruncate64, copy_file_range or rename: fails
 * FAULT_AT      which of these calls fails, counted from 1
 * FAULT_ERRNO   the error of the failed call; later calls succeed
 * FAULT_TROUBLE each call is interrupted once (EINTR), then transfers at most 1,000 bytes
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int is_about(const char *path) {
    const char *part = getenv("FAULT_PATH");
    return part != NULL && strstr(path, part) != NULL;
}

static int is_open(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_about(path);
}

/* Whether this is the call that fails. */
static int fails(const char *call) {
    static int count;
    const char *wanted = getenv("FAULT_CALL");
    if (wanted == NULL || strcmp(wanted, call) != 0) return 0;
    if (__sync_add_and_fetch(&count, 1) != atoi(getenv("FAULT_AT"))) return 0;
    errno = atoi(getenv("FAULT_ERRNO"));
    return 1;
}

/* Whether this call is interrupted: every second one. */
static int is_interrupted(void) {
    static int count;
    if (getenv("FAULT_TROUBLE") == NULL || __sync_fetch_and_add(&count, 1) % 2) return 0;
    errno = EINTR;
    return 1;
}

static size_t little(size_t length) {
    return getenv("FAULT_TROUBLE") != NULL && length > 1000 ? 1000 : length;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define BROKEN(name, fd) (is_open(fd) && (fails(#name) || is_interrupted()))

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t at) {
    if (BROKEN(pwrite64, fd)) return -1;
    return REAL(pwrite64)(fd, bytes, is_open(fd) ? little(length) : length, at);
}

ssize_t pread64(int fd, void *bytes, size_t length, off64_t at) {
    if (BROKEN(pread64, fd)) return -1;
    return REAL(pread64)(fd, bytes, is_open(fd) ? little(length) : length, at);
}

ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t length, unsigned flags) {
    if (BROKEN(copy_file_range, to)) return -1;
    return REAL(copy_file_range)(from, from_at, to, to_at, is_open(to) ? little(length) : length, flags);
}

int fdatasync(int fd) {
    return BROKEN(fdatasync, fd) ? -1 : REAL(fdatasync)(fd);
}

int fsync(int fd) {
    return BROKEN(fsync, fd) ? -1 : REAL(fsync)(fd);
}

int ftruncate64(int fd, off64_t length) {
    return BROKEN(ftruncate64, fd) ? -1 : REAL(ftruncate64)(fd, length);
}

int rename(const char *from, const char *to) {
    return is_about(from) && fails("rename") ? -1 : REAL(rename)(from, to);
}
