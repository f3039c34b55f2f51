/* take_plain: the short way of a small Produce, from the field that holds its batch to a header
 * that has been judged, in one call.
 *
 * It knows the good case alone. For everything else the answer is None, and what is wrong, or
 * special, is found out at leisure by `scriba.records.validate`.
 */
#include "_native.h"

#define HEADER_SIZE 61
#define LOG_OVERHEAD 12
#define CRC_START 21
#define BATCH_MAGIC 2
#define END_TAGS 3 /* of a partition, its topic and the request: none of them has tagged fields */

/* Numbers of a header are signed, the checksum excepted. */
static inline int64_t int64_at(const uint8_t *at)
{
    return (int64_t)big_endian(at, 8);
}

static inline int32_t int32_at(const uint8_t *at)
{
    return (int32_t)big_endian(at, 4);
}

static inline int16_t int16_at(const uint8_t *at)
{
    return (int16_t)big_endian(at, 2);
}

/* The content of the last field of a request; false if it does not end as it should. */
static bool last_field(Cursor frame, bool compact, Cursor *content)
{
    if (!compact) {
        if (frame.end - frame.at < 4 || int32_at(frame.at) != frame.end - frame.at - 4)
            return false;
        *content = (Cursor){frame.at + 4, frame.end};
        return true;
    }
    uint64_t size = 0; /* counts from one */
    for (unsigned shift = 0; shift < 35; shift += 7) {
        if (frame.at == frame.end)
            return false;
        uint8_t byte = *frame.at++;
        size |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            const uint8_t *tags = frame.end - END_TAGS;
            *content = (Cursor){frame.at, tags};
            return frame.end - frame.at >= END_TAGS &&
                   size == (uint64_t)(tags - frame.at) + 1 && !(tags[0] | tags[1] | tags[2]);
        }
    }
    return false;
}

/* Whether the header is that of one whole batch without codec, transaction or other specialities. */
static bool plain_header(Cursor batch, Rules *rules)
{
    const uint8_t *at = batch.at;
    if (batch.end - at < HEADER_SIZE)
        return false;
    rules->count = int32_at(at + 57);
    rules->base_timestamp = int64_at(at + 27);
    return int64_at(at) == 0 && int32_at(at + 8) == batch.end - at - LOG_OVERHEAD &&
           at[16] == BATCH_MAGIC && int16_at(at + 21) == 0 && rules->count > 0 &&
           int32_at(at + 23) == rules->count - 1 && (int64_at(at + 43) < 0 || int32_at(at + 53) >= 0);
}

/* 1 if the checksum is right, 0 if not, -1 with an exception set. */
static int checksum_is_right(State *state, Cursor batch)
{
    PyObject *covered = PyMemoryView_FromMemory((char *)batch.at + CRC_START,
                                                batch.end - batch.at - CRC_START, PyBUF_READ);
    if (covered == NULL)
        return -1;
    PyObject *found = PyObject_CallFunctionObjArgs(state->crc32c, covered, NULL);
    Py_DECREF(covered);
    if (found == NULL)
        return -1;
    unsigned long crc = PyLong_AsUnsignedLong(found);
    Py_DECREF(found);
    if (crc == (unsigned long)-1 && PyErr_Occurred())
        return -1;
    return crc == (uint32_t)int32_at(batch.at + 17);
}

static PyObject *header_tuple(State *state, const uint8_t *at)
{
    static const struct {
        uint8_t at, size;
    } FIELDS[] = {{0, 8},  {8, 4},  {12, 4}, {16, 1}, {17, 0}, {21, 2}, {23, 4},
                  {27, 8}, {35, 8}, {43, 8}, {51, 2}, {53, 4}, {57, 4}};
    enum { COUNT = sizeof FIELDS / sizeof *FIELDS };
    PyObject *header = new_tuple(state->header, COUNT);
    for (int i = 0; header != NULL && i < COUNT; i++) {
        const uint8_t *field = at + FIELDS[i].at;
        int64_t value = FIELDS[i].size == 8   ? int64_at(field)
                        : FIELDS[i].size == 4 ? int32_at(field)
                        : FIELDS[i].size == 2 ? int16_at(field)
                        : FIELDS[i].size == 1 ? (int8_t)*field
                                              : (int64_t)(uint32_t)int32_at(field);
        if (!put_item(header, i, PyLong_FromLongLong(value)))
            Py_CLEAR(header);
    }
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

static PyObject *judge_batch(State *state, PyObject *view, const Py_buffer *data, Cursor batch,
                             Rules *rules)
{
    if (!plain_header(batch, rules))
        return Py_NewRef(Py_None);
    int right = checksum_is_right(state, batch);
    if (right <= 0)
        return right < 0 ? NULL : Py_NewRef(Py_None);
    Findings found = NOTHING_FOUND;
    Cursor records = {batch.at + HEADER_SIZE, batch.end};
    judge_piece(&records, rules, &found);
    if (found.fault || found.records != rules->count || records.at != records.end ||
        found.untimely >= 0 || found.max_timestamp != int64_at(batch.at + 35))
        return Py_NewRef(Py_None);
    PyObject *result = PyTuple_New(2);
    const uint8_t *start = data->buf;
    if (result != NULL && put_item(result, 0, part_of(view, batch.at - start, batch.end - start)) &&
        put_item(result, 1, header_tuple(state, batch.at)))
        return result;
    Py_XDECREF(result);
    return NULL;
}

PyObject *take_plain(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    int64_t at, most;
    Rules rules = {.need_keys = false};
    if (!argument_count("take_plain", nargs, 6) || !int64_argument(args[1], &at) ||
        !int64_argument(args[3], &most) || !int64_argument(args[4], &rules.earliest) ||
        !int64_argument(args[5], &rules.latest))
        return NULL;
    int compact = PyObject_IsTrue(args[2]);
    Py_buffer data;
    if (compact < 0 || PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0)
        return NULL;
    Cursor frame = cursor_over(&data), batch;
    PyObject *result = NULL;
    if (at < 0 || at > data.len) {
        result = Py_NewRef(Py_None);
    } else {
        frame.at += at;
        if (!last_field(frame, compact, &batch) || batch.end - batch.at > most)
            result = Py_NewRef(Py_None);
        else
            result = judge_batch(PyModule_GetState(module), args[0], &data, batch, &rules);
    }
    PyBuffer_Release(&data);
    return result;
}
