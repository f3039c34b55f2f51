/* judge_produce: a Produce, from its bytes to batches that have been judged, in one call; and
 * checked_batches, which walks over those that a leader sent.
 *
 * The batches are found by a plan (`locate`), their topics and partitions in tables of the caller;
 * then header, checksum and every record of each are looked at, by the limits of its topic. It knows
 * the good case alone. For everything else the answer is None, and what is wrong, or special, is
 * found out by `scriba.records.validate`; it is False where the tables lack a topic or a partition.
 */
#include "layout.h"
#include "native.h"

#include <string.h>

/* Whether the header is that of one whole batch without transaction or other specialities, and with
 * no codec but lz4. */
static bool plain_header(Cursor batch, Rules *rules)
{
    const uint8_t *at = batch.at;
    if (batch.end - at < HEADER_SIZE)
        return false;
    rules->count = int32_at(at + COUNT_AT);
    rules->base_timestamp = int64_at(at + BASE_TIMESTAMP_AT);
    return int64_at(at + BASE_OFFSET_AT) == 0 &&
           int32_at(at + LENGTH_AT) == batch.end - at - LOG_OVERHEAD &&
           at[MAGIC_AT] == BATCH_MAGIC &&
           (int16_at(at + ATTRIBUTES_AT) == 0 || int16_at(at + ATTRIBUTES_AT) == LZ4) &&
           rules->count > 0 &&
           int32_at(at + LAST_DELTA_AT) == rules->count - 1 &&
           (int64_at(at + PRODUCER_ID_AT) < 0 || int32_at(at + BASE_SEQUENCE_AT) >= 0);
}

/* 1 if the checksum is right, 0 if not, -1 with an exception set. */
static int checksum_is_right(State *state, Cursor batch)
{
    const uint8_t *covered = batch.at + CRC_START;
    uint32_t crc;
    if (!crc32c(state, covered, batch.end - covered, &crc))
        return -1;
    return crc == (uint32_t)int32_at(batch.at + CRC_AT);
}

PyObject *header_tuple(State *state, const uint8_t *at)
{
    const int64_t fields[] = {
        int64_at(at + BASE_OFFSET_AT),        int32_at(at + LENGTH_AT),
        int32_at(at + LEADER_EPOCH_AT),       (int8_t)at[MAGIC_AT],
        (uint32_t)int32_at(at + CRC_AT),      int16_at(at + ATTRIBUTES_AT),
        int32_at(at + LAST_DELTA_AT),         int64_at(at + BASE_TIMESTAMP_AT),
        int64_at(at + MAX_TIMESTAMP_AT),      int64_at(at + PRODUCER_ID_AT),
        int16_at(at + PRODUCER_EPOCH_AT),     int32_at(at + BASE_SEQUENCE_AT),
        int32_at(at + COUNT_AT),
    };
    enum { COUNT = sizeof fields / sizeof *fields };
    PyObject *header = new_tuple(state->header, COUNT);
    for (int i = 0; header != NULL && i < COUNT; i++)
        if (!put_item(header, i, PyLong_FromLongLong(fields[i])))
            Py_CLEAR(header);
    return header;
}

/* A new reference to a slice of a view. */
static PyObject *part_of(PyObject *view, Py_ssize_t start, Py_ssize_t end)
{
    PyObject *from = PyLong_FromSsize_t(start), *to = PyLong_FromSsize_t(end);
    PyObject *slice = from && to ? PySlice_New(from, to, NULL) : NULL;
    PyObject *part = slice ? PyObject_GetItem(view, slice) : NULL;
    Py_XDECREF(from);
    Py_XDECREF(to);
    Py_XDECREF(slice);
    return part;
}

static bool is_packed(Cursor batch)
{
    return batch.at[ATTRIBUTES_AT + 1] == LZ4;
}

/* 1 if checksum and records are right, 0 if not, -1 with an exception set. What is packed may grow
 * to `*unpacked`. */
static int is_right(State *state, Cursor batch, const Rules *rules, int64_t *unpacked)
{
    int right = checksum_is_right(state, batch);
    if (right <= 0)
        return right;
    Findings found = NOTHING_FOUND;
    Cursor records = {batch.at + HEADER_SIZE, batch.end};
    bool rest;
    if (is_packed(batch)) {
        if (!judge_lz4(state, records, unpacked, rules, &found, &rest))
            return PyErr_Occurred() ? -1 : 0;
    } else {
        judge_piece(&records, rules, &found);
        rest = records.at < records.end;
    }
    return !found.fault && found.records == rules->count && !rest &&
           found.untimely < 0 && found.keyless < 0 &&
           found.max_timestamp == int64_at(batch.at + MAX_TIMESTAMP_AT);
}

/* ---- a request ---- */

#define TOPICS_AT 6 /* behind correlation id, transactional id, acks, time-out and their number */

/* A batch: where it is, for whom, and by which rules. */
typedef struct {
    Cursor batch;
    PyObject *topic;
    PyObject *partition;
    Rules rules;
} Entry;

#define FEW_ENTRIES 2 /* most requests have one batch */

typedef struct {
    Cursor frame;
    const int64_t *at; /* what the plan told, and its end */
    const int64_t *end;
    PyObject *topics; /* dict: name or id -> topic */
    int64_t now;
    int64_t unpacked; /* what all packed batches together may grow to */
    Entry *entries;
    Py_ssize_t count;
    Entry few[FEW_ENTRIES];
} Request;

typedef enum { ERROR = -1, UNUSUAL, UNKNOWN, USUAL } Judgement;

/* Moves over the begin and the end of a field; false for a null. */
static bool next_span(Request *request, Cursor *span)
{
    int64_t from = request->at[0], to = request->at[1];
    request->at += 2;
    if (from < 0 || to < from || to > request->frame.end - request->frame.at)
        return false;
    *span = (Cursor){request->frame.at + from, request->frame.at + to};
    return true;
}

/* How large a batch may be, as it is and packed. */
typedef struct {
    int64_t plain;
    int64_t packed;
} Most;

/* A topic is (most_bytes, need_keys, before_ms, after_ms, partitions by index, most_lz4, ...). */
static bool read_topic(PyObject *topic, int64_t now, Most *most, Rules *rules,
                       PyObject **partitions)
{
    int64_t before, after;
    if (!PyTuple_Check(topic) || PyTuple_Size(topic) < 6) {
        PyErr_SetString(PyExc_TypeError, "a topic must be a tuple");
        return false;
    }
    *partitions = PyTuple_GetItem(topic, 4);
    if (!PyDict_Check(*partitions) || !int64_argument(PyTuple_GetItem(topic, 0), &most->plain) ||
        !int64_argument(PyTuple_GetItem(topic, 5), &most->packed) ||
        !int64_argument(PyTuple_GetItem(topic, 2), &before) ||
        !int64_argument(PyTuple_GetItem(topic, 3), &after))
        return false;
    /* Either may be as large as there are numbers: no limit. */
    if (__builtin_sub_overflow(now, before, &rules->earliest))
        rules->earliest = before < 0 ? INT64_MAX : INT64_MIN;
    if (__builtin_add_overflow(now, after, &rules->latest))
        rules->latest = after < 0 ? INT64_MIN : INT64_MAX;
    rules->need_keys = PyTuple_GetItem(topic, 1) == Py_True;
    return true;
}

/* What a dict has under a key, which is dropped. The result is borrowed. */
static PyObject *look_up(PyObject *dict, PyObject *key)
{
    PyObject *found = key == NULL ? NULL : PyDict_GetItemWithError(dict, key);
    Py_XDECREF(key);
    return found;
}

static Judgement find_batch(Request *request, PyObject *topic, PyObject *partitions, Most most,
                            const Rules *rules)
{
    if (request->end - request->at < 3)
        return UNUSUAL;
    PyObject *partition = look_up(partitions, PyLong_FromLongLong(*request->at++));
    if (partition == NULL)
        return PyErr_Occurred() ? ERROR : UNKNOWN;
    for (Py_ssize_t i = request->count; i-- > 0;)
        if (request->entries[i].partition == partition)
            return UNUSUAL;
    Cursor batch;
    Entry *entry = &request->entries[request->count];
    entry->rules = *rules;
    if (!next_span(request, &batch) || !plain_header(batch, &entry->rules) ||
        batch.end - batch.at > (is_packed(batch) ? most.packed : most.plain))
        return UNUSUAL;
    entry->batch = batch;
    entry->topic = Py_NewRef(topic);
    entry->partition = Py_NewRef(partition);
    request->count++;
    return USUAL;
}

static Judgement find_batches_of_topic(Request *request)
{
    Cursor name;
    if (request->end - request->at < 3 || !next_span(request, &name))
        return UNUSUAL;
    PyObject *key = PyBytes_FromStringAndSize((const char *)name.at, name.end - name.at);
    PyObject *topic = look_up(request->topics, key), *partitions;
    if (topic == NULL)
        return PyErr_Occurred() ? ERROR : UNKNOWN;
    Most most;
    int64_t count = *request->at++;
    Rules rules = {0};
    if (!read_topic(topic, request->now, &most, &rules, &partitions))
        return ERROR;
    /* A topic that comes again is the one before, or it was found before that. */
    for (Py_ssize_t i = request->count; i-- > 0;)
        if (request->entries[i].topic == topic)
            return UNUSUAL;
    Judgement judgement = count > 0 ? USUAL : UNUSUAL;
    while (judgement == USUAL && count-- > 0)
        judgement = find_batch(request, topic, partitions, most, &rules);
    return judgement;
}

/* Finds all batches and looks at their headers, which costs next to nothing. */
static Judgement find_batches(Request *request)
{
    if (request->end - request->at < TOPICS_AT)
        return UNUSUAL;
    int64_t transactional_id = request->at[1], acks = request->at[3], count = request->at[5];
    if (transactional_id >= 0 || acks < -1 || acks > 1 || count == 0)
        return UNUSUAL;
    request->at += TOPICS_AT;
    Judgement judgement = USUAL;
    while (judgement == USUAL && count-- > 0)
        judgement = find_batches_of_topic(request);
    return judgement;
}

static Judgement judge_entries(State *state, Request *request)
{
    for (Py_ssize_t i = 0; i < request->count; i++) {
        const Entry *entry = &request->entries[i];
        int right = is_right(state, entry->batch, &entry->rules, &request->unpacked);
        if (right <= 0)
            return right < 0 ? ERROR : UNUSUAL;
    }
    return USUAL;
}

/* (correlation id, acks, time-out, then of each batch: partition, bytes, header) */
static PyObject *told_of(State *state, PyObject *frame, const int64_t *numbers,
                         const Request *request)
{
    PyObject *told = PyTuple_New(3 + 3 * request->count);
    bool whole = told != NULL && put_item(told, 0, PyLong_FromLongLong(numbers[0])) &&
                 put_item(told, 1, PyLong_FromLongLong(numbers[3])) &&
                 put_item(told, 2, PyLong_FromLongLong(numbers[4]));
    for (Py_ssize_t i = 0; whole && i < request->count; i++) {
        const Entry *entry = &request->entries[i];
        Py_ssize_t from = entry->batch.at - request->frame.at;
        Py_ssize_t to = entry->batch.end - request->frame.at;
        whole = put_item(told, 3 + 3 * i, Py_NewRef(entry->partition)) &&
                put_item(told, 4 + 3 * i, part_of(frame, from, to)) &&
                put_item(told, 5 + 3 * i, header_tuple(state, entry->batch.at));
    }
    if (!whole)
        Py_CLEAR(told);
    return told;
}

static PyObject *judge_located(State *state, PyObject *frame, const Numbers *told,
                               Request *request)
{
    request->at = told->list;
    request->end = told->list + told->count;
    size_t most = told->count < TOPICS_AT ? 0 : (size_t)(told->count - TOPICS_AT) / 3;
    request->entries =
        most <= FEW_ENTRIES ? request->few : PyMem_Malloc(most * sizeof *request->entries);
    if (request->entries == NULL)
        return PyErr_NoMemory();
    Judgement judgement = find_batches(request);
    if (judgement == USUAL)
        judgement = judge_entries(state, request);
    PyObject *result = NULL;
    if (judgement == USUAL)
        result = told_of(state, frame, told->list, request);
    else if (judgement != ERROR)
        result = Py_NewRef(judgement == UNKNOWN ? Py_False : Py_None);
    while (request->count-- > 0) {
        Py_DECREF(request->entries[request->count].topic);
        Py_DECREF(request->entries[request->count].partition);
    }
    if (request->entries != request->few)
        PyMem_Free(request->entries);
    return result;
}

/* judge_produce(plan, frame, most_elements, topics, now_ms, most_unpacked) */
PyObject *judge_produce(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Request request = {0};
    int64_t most_elements;
    Py_buffer frame;
    char *plan;
    Py_ssize_t plan_size;
    if (!argument_count("judge_produce", nargs, 6) || !int64_argument(args[2], &most_elements) ||
        !int64_argument(args[4], &request.now) || !int64_argument(args[5], &request.unpacked))
        return NULL;
    request.topics = args[3];
    if (!PyDict_Check(request.topics)) {
        PyErr_SetString(PyExc_TypeError, "topics must be a dict");
        return NULL;
    }
    if (PyBytes_AsStringAndSize(args[0], &plan, &plan_size) < 0 ||
        PyObject_GetBuffer(args[1], &frame, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *result = NULL;
    Numbers told;
    Cursor steps = {(const uint8_t *)plan, (const uint8_t *)plan + plan_size};
    request.frame = cursor_over(&frame);
    Walked walked = locate_fields(steps, request.frame, most_elements, &told);
    if (walked == WALKED)
        result = judge_located(PyModule_GetState(module), args[1], &told, &request);
    else if (walked == GIVEN_UP)
        result = Py_NewRef(Py_None);
    free_numbers(&told);
    PyBuffer_Release(&frame);
    return result;
}

/* ---- what a leader sent ---- */

/* A new tuple of a position and the header there. */
static PyObject *placed_header(State *state, Py_ssize_t position, const uint8_t *at)
{
    PyObject *placed = PyTuple_New(2);
    if (placed != NULL && !(put_item(placed, 0, PyLong_FromSsize_t(position)) &&
                            put_item(placed, 1, header_tuple(state, at))))
        Py_CLEAR(placed);
    return placed;
}

/* The list grows up to the first batch that is not whole and right; false with an exception set. */
static bool walk_batches(State *state, Cursor data, int64_t next_offset, PyObject *found)
{
    Cursor batch = data;
    Extent extent;
    while (batch.end - batch.at >= HEADER_SIZE &&
           batch_fits(batch.at, batch.end - batch.at, next_offset, &extent)) {
        batch.end = batch.at + extent.size;
        int right = checksum_is_right(state, batch);
        if (right <= 0)
            return right == 0;
        PyObject *placed = placed_header(state, batch.at - data.at, batch.at);
        int appended = placed == NULL ? -1 : PyList_Append(found, placed);
        Py_XDECREF(placed);
        if (appended < 0)
            return false;
        next_offset = extent.last_offset + 1;
        batch = (Cursor){batch.end, data.end};
    }
    return true;
}

/* checked_batches(data, next_offset) */
PyObject *checked_batches(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    int64_t next_offset;
    Py_buffer data;
    if (!argument_count("checked_batches", nargs, 2) || !int64_argument(args[1], &next_offset) ||
        PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *found = PyList_New(0);
    if (found != NULL &&
        !walk_batches(PyModule_GetState(module), cursor_over(&data), next_offset, found))
        Py_CLEAR(found);
    PyBuffer_Release(&data);
    return found;
}
