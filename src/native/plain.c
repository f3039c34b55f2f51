/* OffsetMap.put_plain and retain_plain: compaction of many batches in one call.
 *
 * Plain batches are those that need no knowledge but the map's: of data, not compressed, in no
 * transaction, and sound. A walk ends at the first batch that is anything else, and at one of
 * which nothing stays but its header; the caller looks at that one itself.
 */
#include "layout.h"
#include "map.h"

#include <string.h>

#define NOT_PLAIN (CODEC_MASK | TRANSACTIONAL | CONTROL)

typedef struct {
    const uint8_t *start;
    Extent extent;
    Py_ssize_t size;
    int64_t base_timestamp;
    int64_t max_timestamp;
    int64_t count;
    uint16_t attributes;
    Cursor records;
} Batch;

/* Whether a plain batch lies at the cursor, whole; false with an exception set if that failed. */
static bool plain_batch(const State *state, Cursor cursor, int64_t next_offset, Batch *batch)
{
    const uint8_t *at = cursor.at;
    if (cursor.end - at < HEADER_SIZE ||
        !batch_fits(at, cursor.end - at, next_offset, &batch->extent))
        return false;
    batch->start = at;
    batch->size = (Py_ssize_t)batch->extent.size;
    batch->attributes = (uint16_t)int16_at(at + ATTRIBUTES_AT);
    batch->base_timestamp = int64_at(at + BASE_TIMESTAMP_AT);
    batch->max_timestamp = int64_at(at + MAX_TIMESTAMP_AT);
    batch->count = int32_at(at + COUNT_AT);
    if (batch->attributes & NOT_PLAIN || batch->count < 1 ||
        batch->count > (batch->size - HEADER_SIZE) / MIN_RECORD_BYTES)
        return false;
    batch->records = (Cursor){at + HEADER_SIZE, at + batch->size};
    uint32_t crc;
    return crc32c(state, at + CRC_START, batch->size - CRC_START, &crc) &&
           crc == (uint32_t)big_endian(at + CRC_AT, 4);
}

static bool place_argument(PyObject *argument, const Py_buffer *view, Py_ssize_t *place)
{
    *place = PyLong_AsSsize_t(argument);
    if (*place == -1 && PyErr_Occurred() != NULL)
        return false;
    if (*place >= 0 && *place <= view->len)
        return true;
    PyErr_SetString(PyExc_ValueError, "a place outside of the buffer");
    return false;
}

/* ---- the first reading ---- */

static PyObject *put_walk(const State *state, OffsetMap *self, Cursor cursor,
                          const uint8_t *origin, int64_t next_offset, int64_t start_offset)
{
    Batch batch;
    while (plain_batch(state, cursor, next_offset, &batch)) {
        if (batch.extent.last_offset >= start_offset) {
            Progress progress = put_section(
                self, (Section){batch.records, batch.count, batch.extent.base_offset, start_offset});
            if (progress.taken < batch.count || progress.rest)
                break;
        }
        cursor.at += batch.size;
        next_offset = batch.extent.last_offset + 1;
    }
    if (PyErr_Occurred() != NULL)
        return NULL;
    return Py_BuildValue("(nL)", (Py_ssize_t)(cursor.at - origin), (long long)next_offset);
}

PyObject *map_put_plain(PyObject *object, PyObject *const *args, Py_ssize_t nargs)
{
    OffsetMap *self = (OffsetMap *)object;
    int64_t next_offset, start_offset;
    Py_ssize_t at;
    Py_buffer data;
    if (!argument_count("put_plain", nargs, 4) || !int64_argument(args[2], &next_offset) ||
        !int64_argument(args[3], &start_offset) ||
        PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *result = NULL;
    if (place_argument(args[1], &data, &at) && enter(self)) {
        Cursor all = cursor_over(&data);
        self->busy = true;
        result = put_walk(PyType_GetModuleState(Py_TYPE(object)), self,
                          (Cursor){all.at + at, all.end}, all.at, next_offset, start_offset);
        self->busy = false;
    }
    PyBuffer_Release(&data);
    return result;
}

/* ---- the second reading ---- */

typedef struct {
    int64_t latest_offset;
    int64_t now;
    int64_t horizon;
    int64_t interval;
    const char *needed; /* numbers of 64 bits, rising: last offsets of batches that stay if empty */
    Py_ssize_t needed_count;
    const uint8_t *last_end; /* where the last batch of all ends, which stays as well */
} Plan;

typedef struct {
    uint8_t *at;
    uint8_t *start;
    uint8_t *end;
    int64_t since_index;
    int64_t max_timestamp;
    int64_t max_timestamp_offset;
    PyObject *entries;
} Sink;

typedef struct {
    int64_t read;
    int64_t kept;
    bool changed;
    bool full;
} Tally;

/* The buffer may begin anywhere. */
static inline int64_t needed_at(const Plan *plan, Py_ssize_t index)
{
    int64_t offset;
    memcpy(&offset, plan->needed + index * (Py_ssize_t)sizeof(offset), sizeof(offset));
    return offset;
}

static bool is_needed(const Plan *plan, const Batch *batch)
{
    if (batch->start + batch->size == plan->last_end)
        return true;
    Py_ssize_t low = 0, high = plan->needed_count;
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        int64_t offset = needed_at(plan, middle);
        if (offset == batch->extent.last_offset)
            return true;
        if (offset < batch->extent.last_offset)
            low = middle + 1;
        else
            high = middle;
    }
    return false;
}

/* A batch was written at `sink->at`: takes note of it for the indexes. */
static bool note(Sink *sink, const Plan *plan, const Batch *batch, int64_t max_timestamp,
                 Py_ssize_t size)
{
    if (max_timestamp > sink->max_timestamp) {
        sink->max_timestamp = max_timestamp;
        sink->max_timestamp_offset = batch->extent.last_offset;
    }
    if (sink->since_index > plan->interval) {
        sink->since_index = 0;
        PyObject *entry = Py_BuildValue(
            "(LLnLL)", (long long)batch->extent.base_offset, (long long)batch->extent.last_offset,
            (Py_ssize_t)(sink->at - sink->start), (long long)sink->max_timestamp,
            (long long)sink->max_timestamp_offset);
        if (entry == NULL || PyList_Append(sink->entries, entry) < 0) {
            Py_XDECREF(entry);
            return false;
        }
        Py_DECREF(entry);
    }
    sink->since_index += size;
    sink->at += size;
    return true;
}

static bool put_header(const State *state, uint8_t *out, Py_ssize_t size, const Batch *batch,
                       const Choice *choice, int64_t horizon, int64_t *max_timestamp)
{
    memcpy(out, batch->start, HEADER_SIZE);
    put_big_endian(out + LENGTH_AT, 4, (uint64_t)(size - LOG_OVERHEAD));
    if (horizon >= 0) {
        put_big_endian(out + ATTRIBUTES_AT, 2, batch->attributes | DELETE_HORIZON);
        put_big_endian(out + BASE_TIMESTAMP_AT, 8, (uint64_t)horizon);
    }
    *max_timestamp =
        batch->attributes & LOG_APPEND_TIME ? batch->max_timestamp : choice->max_timestamp;
    put_big_endian(out + MAX_TIMESTAMP_AT, 8, (uint64_t)*max_timestamp);
    put_big_endian(out + COUNT_AT, 4, (uint64_t)choice->kept);
    uint32_t crc;
    if (!crc32c(state, out + CRC_START, size - CRC_START, &crc))
        return false;
    put_big_endian(out + CRC_AT, 4, crc);
    return true;
}

typedef enum { DONE, HAND_OVER, FULL, FAILED } Outcome;

static Outcome copy_batch(Sink *sink, const Plan *plan, const Batch *batch)
{
    if (sink->end - sink->at < batch->size)
        return FULL;
    memcpy(sink->at, batch->start, (size_t)batch->size);
    return note(sink, plan, batch, batch->max_timestamp, batch->size) ? DONE : FAILED;
}

static Outcome keep_of(const State *state, OffsetMap *self, Sink *sink, const Plan *plan,
                       const Batch *batch, uint8_t *marks, Tally *tally)
{
    bool set = batch->attributes & DELETE_HORIZON;
    Terms terms = {batch->extent.base_offset, plan->latest_offset, batch->base_timestamp,
                   set ? -1 : plan->horizon, set && batch->base_timestamp <= plan->now};
    Choice choice;
    Progress progress = choose(self, &terms, batch->records, batch->count, marks, &choice);
    if (progress.fault || progress.rest || (choice.kept == 0 && is_needed(plan, batch)))
        return HAND_OVER;
    bool rebase = choice.tombstones && terms.horizon >= 0;
    if (choice.kept == batch->count && !rebase) {
        Outcome outcome = copy_batch(sink, plan, batch);
        tally->kept += outcome == DONE ? batch->count : 0;
        return outcome;
    }
    Py_ssize_t most = choice.bytes + (rebase ? choice.kept * MOST_REBASE_GROWTH : 0);
    if (sink->end - sink->at < HEADER_SIZE + most)
        return FULL;
    tally->changed = true;
    if (choice.kept == 0)
        return DONE;
    uint8_t *end =
        put_kept(sink->at + HEADER_SIZE, batch->records, batch->count, marks, &terms, rebase);
    Py_ssize_t size = end - sink->at;
    int64_t max_timestamp;
    if (!put_header(state, sink->at, size, batch, &choice, rebase ? terms.horizon : -1,
                    &max_timestamp))
        return FAILED;
    tally->kept += choice.kept;
    return note(sink, plan, batch, max_timestamp, size) ? DONE : FAILED;
}

/* False with an exception set. */
static bool retain_walk(const State *state, OffsetMap *self, Cursor *cursor, int64_t *next_offset,
                        Sink *sink, const Plan *plan, Tally *tally)
{
    Py_ssize_t room = cursor->end - cursor->at;
    uint8_t *marks = PyMem_Malloc((size_t)room / MIN_RECORD_BYTES + 1);
    if (marks == NULL) {
        PyErr_NoMemory();
        return false;
    }
    Batch batch;
    Outcome outcome = DONE;
    while (outcome == DONE && plain_batch(state, *cursor, *next_offset, &batch)) {
        if (batch.extent.base_offset > plan->latest_offset) {
            outcome = copy_batch(sink, plan, &batch);
            tally->kept += outcome == DONE ? batch.count : 0;
        } else {
            outcome = keep_of(state, self, sink, plan, &batch, marks, tally);
        }
        if (outcome == DONE) {
            tally->read += batch.count;
            cursor->at += batch.size;
            *next_offset = batch.extent.last_offset + 1;
        }
    }
    PyMem_Free(marks);
    tally->full = outcome == FULL;
    return PyErr_Occurred() == NULL;
}

static PyObject *retain_in(OffsetMap *self, PyObject *const *args, const Py_buffer *data,
                           const Py_buffer *out, const Py_buffer *needed)
{
    Plan plan = {.needed = needed->buf, .needed_count = needed->len / (Py_ssize_t)sizeof(int64_t)};
    Sink sink = {.start = out->buf};
    Py_ssize_t at, used, last_end;
    int64_t next_offset, last;
    if (!place_argument(args[1], data, &at) || !int64_argument(args[2], &next_offset) ||
        !int64_argument(args[3], &last) || !place_argument(args[5], out, &used) ||
        !int64_argument(args[6], &plan.latest_offset) || !int64_argument(args[7], &plan.now) ||
        !int64_argument(args[8], &plan.horizon) || !int64_argument(args[9], &plan.interval) ||
        !int64_argument(args[11], &sink.since_index) ||
        !int64_argument(args[12], &sink.max_timestamp) ||
        !int64_argument(args[13], &sink.max_timestamp_offset) || !enter(self))
        return NULL;
    Cursor all = cursor_over(data);
    Cursor cursor = {all.at + at, all.end};
    last_end = (Py_ssize_t)last;
    plan.last_end = last_end >= 0 && last_end <= data->len ? all.at + last_end : NULL;
    sink.at = sink.start + used;
    sink.end = sink.start + out->len;
    sink.entries = PyList_New(0);
    Tally tally = {0};
    if (sink.entries == NULL)
        return NULL;
    self->busy = true;
    bool done = retain_walk(PyType_GetModuleState(Py_TYPE((PyObject *)self)), self, &cursor,
                            &next_offset, &sink, &plan, &tally);
    self->busy = false;
    if (!done) {
        Py_DECREF(sink.entries);
        return NULL;
    }
    return Py_BuildValue("(nLnLLOOLLLN)", (Py_ssize_t)(cursor.at - all.at), (long long)next_offset,
                         (Py_ssize_t)(sink.at - sink.start), (long long)tally.read,
                         (long long)tally.kept, tally.changed ? Py_True : Py_False,
                         tally.full ? Py_True : Py_False, (long long)sink.since_index,
                         (long long)sink.max_timestamp, (long long)sink.max_timestamp_offset,
                         sink.entries);
}

/* retain_plain(data, at, next_offset, last_end, out, used, latest_offset, now, horizon, interval,
 *              needed, since_index, max_timestamp, max_timestamp_offset) */
PyObject *map_retain_plain(PyObject *object, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer data, out, needed;
    if (!argument_count("retain_plain", nargs, 14) ||
        PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *result = NULL;
    if (PyObject_GetBuffer(args[4], &out, PyBUF_WRITABLE) == 0) {
        if (PyObject_GetBuffer(args[10], &needed, PyBUF_SIMPLE) == 0) {
            result = retain_in((OffsetMap *)object, args, &data, &out, &needed);
            PyBuffer_Release(&needed);
        }
        PyBuffer_Release(&out);
    }
    PyBuffer_Release(&data);
    return result;
}
