/* walk_headers: whether the offsets of a file's batches ascend, looked at before they are sent.
 *
 * `scriba.native.headers` has the rule in Python, and tells what is wrong where this one finds that
 * something is. Nothing here waits for a device: what is not in the page cache is not read.
 */
#define _GNU_SOURCE
#include "layout.h"
#include "native.h"

#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#ifndef RWF_NOWAIT
#define RWF_NOWAIT 8 /* Linux 4.14; an older kernel refuses it */
#endif
#endif

#define WINDOW (16 << 10)
#define SPARSE (2 << 10) /* from this size of batches on, their headers are read one by one */

typedef struct {
    int64_t position, start, stop, end;
    int64_t next_offset, last_offset, offset, upper, most;
    bool min_one;
} Walk;

static ssize_t read_cached(int fd, uint8_t *buffer, size_t size, int64_t position)
{
#if defined(RWF_NOWAIT) && defined(SYS_preadv2)
    /* Not by its function, which is younger than the systems that the wheel is made for. */
    struct iovec window = {buffer, size};
    long low = (long)position, high = (long)((uint64_t)position >> 32);
    ssize_t got = syscall(SYS_preadv2, fd, &window, 1L, low, high, (long)RWF_NOWAIT);
    if (got >= 0 || (errno != EOPNOTSUPP && errno != EINVAL && errno != ENOSYS))
        return got;
#endif
    return pread(fd, buffer, size, (off_t)position); /* a file system that cannot tell */
}

/* Whether a batch may lie here, where the walk has come to. */
static bool may_be(const Walk *walk, const uint8_t *header, Extent *extent)
{
    if (!batch_fits(header, walk->end - walk->position, walk->next_offset, extent) ||
        extent->last_offset >= walk->upper)
        return false;
    if (walk->position < walk->start && extent->size > walk->start - walk->position)
        return false;
    return (walk->last_offset < 0 || extent->last_offset == walk->last_offset) &&
           (walk->position != walk->start || extent->last_offset >= walk->offset);
}

typedef enum { GOES_ON, ARRIVED, WRONG } Step;

/* Walks over what was read. */
static Step walk_window(Walk *walk, const uint8_t *buffer, int64_t got, size_t *wanted)
{
    int64_t at = 0, passed = 0;
    for (; got - at >= HEADER_SIZE; passed++) {
        Extent extent;
        if (!may_be(walk, buffer + at, &extent))
            return WRONG;
        bool enough = extent.size > walk->stop - walk->position || walk->most <= 0;
        if (enough && walk->position >= walk->start &&
            !(walk->min_one && walk->position == walk->start))
            return ARRIVED;
        walk->next_offset = extent.last_offset + 1;
        walk->last_offset = -1;
        walk->most--;
        walk->position += extent.size;
        at += extent.size;
    }
    *wanted = at >= SPARSE * passed ? HEADER_SIZE : WINDOW;
    return GOES_ON;
}

/* Where the walk ends; negative where something is wrong, or was not read. */
static int64_t walk_file(int fd, Walk *walk)
{
    uint8_t buffer[WINDOW];
    int64_t reach = walk->stop - walk->position;
    size_t wanted = HEADER_SIZE + (reach > 0 && reach <= SPARSE ? (size_t)reach : 0);
    Step step = GOES_ON;
    while (step == GOES_ON && walk->position < walk->end) {
        int64_t got = read_cached(fd, buffer, wanted, walk->position);
        if (got > walk->end - walk->position)
            got = walk->end - walk->position;
        step = got < HEADER_SIZE ? WRONG : walk_window(walk, buffer, got, &wanted);
    }
    return step == WRONG ? -1 : walk->position;
}

/* walk_headers(fd, position, start, stop, end, next_offset, last_offset, offset, upper, most,
 *              min_one): where it ends, or None */
PyObject *walk_headers(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    Walk walk;
    int64_t fd;
    if (!argument_count("walk_headers", nargs, 11) || !int64_argument(args[0], &fd) ||
        !int64_argument(args[1], &walk.position) || !int64_argument(args[2], &walk.start) ||
        !int64_argument(args[3], &walk.stop) || !int64_argument(args[4], &walk.end) ||
        !int64_argument(args[5], &walk.next_offset) ||
        !int64_argument(args[6], &walk.last_offset) || !int64_argument(args[7], &walk.offset) ||
        !int64_argument(args[8], &walk.upper) || !int64_argument(args[9], &walk.most))
        return NULL;
    walk.min_one = args[10] == Py_True;
    if (walk.upper < 0 || walk.next_offset < 0 || walk.position < 0) {
        PyErr_SetString(PyExc_ValueError, "an offset or a position is below 0");
        return NULL;
    }
    if (walk.stop < 0)
        walk.stop = 0; /* a limit below 0 is one that nothing is within */
    int64_t end = walk_file((int)fd, &walk);
    return end < 0 ? Py_NewRef(Py_None) : PyLong_FromLongLong(end);
}
