/* The C yardstick of read_batch_into: the cost of a batch if only the copying is left. Threads take
 * records one by one and copy memory by memcpy, or the file by pread. Compiled by benches/support/native.py. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

struct job {
    const char *base; /* mapped file, or NULL to use pread */
    int fd;
    const int64_t *offsets, *lengths, *starts;
    int64_t count;
    char *out;
    atomic_long next;
    atomic_int failed;
};

static void *work(void *argument) {
    struct job *job = argument;
    for (;;) {
        int64_t i = atomic_fetch_add(&job->next, 1);
        if (i >= job->count) return NULL;
        char *out = job->out + job->starts[i];
        if (job->base) {
            memcpy(out, job->base + job->offsets[i], (size_t)job->lengths[i]);
        } else {
            int64_t done = 0;
            while (done < job->lengths[i]) {
                ssize_t got = pread(job->fd, out + done, (size_t)(job->lengths[i] - done), job->offsets[i] + done);
                if (got <= 0) {
                    job->failed = 1;
                    return NULL;
                }
                done += got;
            }
        }
    }
}

int gather(const char *base, int fd, const int64_t *offsets, const int64_t *lengths, const int64_t *starts,
           int64_t count, char *out, int threads) {
    struct job job = {base, fd, offsets, lengths, starts, count, out, 0, 0};
    pthread_t others[256];
    int started = 0;
    while (started + 1 < threads && started < 256 && !pthread_create(&others[started], NULL, work, &job)) started++;
    work(&job);
    for (int i = 0; i < started; i++) pthread_join(others[i], NULL);
    return job.failed;
}
