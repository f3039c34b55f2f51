/* OffsetMap.retain: what compaction leaves of one batch. */
#include "layout.h"
#include "map.h"

#include <string.h>

/* ---- which records stay ---- */

typedef struct {
    Hash hash;
    int64_t index;
    int64_t offset;
    int64_t timestamp;
    Py_ssize_t size;
    bool asks;       /* whether the map has a say */
    bool tombstone;
} Contender;

static Fault read_contender(const OffsetMap *self, const Terms *terms, Cursor *cursor,
                            Contender *out, bool *out_of_question)
{
    const uint8_t *start = cursor->at;
    RecordView record;
    Fault fault = read_record(cursor, &record);
    if (fault)
        return fault;
    out->offset = wrapping_sum(terms->base_offset, record.offset_delta);
    out->timestamp = wrapping_sum(terms->base_timestamp, record.time_delta);
    out->size = cursor->at - start;
    out->tombstone = record.value.data == NULL;
    out->asks = out->offset <= terms->latest_offset;
    *out_of_question = out->asks && (record.key.data == NULL ||
                                     (out->tombstone && terms->drop_tombstones));
    if (out->asks && !*out_of_question)
        out->hash = hash_key(self, record.key);
    return FINE;
}

static void settle(const OffsetMap *self, const Contender *each, uint8_t *marks, Choice *choice)
{
    if (each->asks && each->offset < find_slot(self, each->hash)->after - 1)
        return;
    marks[each->index] = true;
    if (each->timestamp > choice->max_timestamp)
        choice->max_timestamp = each->timestamp;
    choice->tombstones |= each->tombstone;
    choice->bytes += each->size;
    choice->kept++;
}

Progress choose(const OffsetMap *self, const Terms *terms, Cursor cursor, int64_t count,
                uint8_t *marks, Choice *choice)
{
    *choice = (Choice){.max_timestamp = NO_TIMESTAMP};
    memset(marks, 0, (size_t)count);
    Contender contenders[AT_ONCE];
    int found = 0;
    for (int64_t i = 0; i < count; i++) {
        Contender *each = &contenders[found];
        bool out_of_question;
        Fault fault = read_contender(self, terms, &cursor, each, &out_of_question);
        if (fault)
            return (Progress){i, fault, false};
        each->index = i;
        found += !out_of_question;
        if (found == AT_ONCE || i + 1 == count) {
            for (int n = 0; n < found; n++)
                settle(self, &contenders[n], marks, choice);
            found = 0;
        }
    }
    return (Progress){count, FINE, cursor.at < cursor.end};
}

/* ---- what stays, written down ---- */

/* The same record with a timestamp that counts from another base. */
static uint8_t *put_rebased(uint8_t *out, Cursor record, const Terms *terms)
{
    int32_t size;
    int64_t delta;
    if (!read_varint(&record, &size) || record.at == record.end)
        return out;
    uint8_t attributes = *record.at++;
    if (!read_varlong(&record, &delta))
        return out;
    int64_t timestamp = wrapping_sum(terms->base_timestamp, delta);
    delta = (int64_t)((uint64_t)timestamp - (uint64_t)terms->horizon);
    int64_t rest = record.end - record.at;
    out = put_varint(out, 1 + varint_size(delta) + rest);
    *out++ = attributes;
    out = put_varint(out, delta);
    memcpy(out, record.at, (size_t)rest);
    return out + rest;
}

uint8_t *put_kept(uint8_t *out, Cursor cursor, int64_t count, const uint8_t *marks,
                  const Terms *terms, bool rebase)
{
    for (int64_t i = 0; i < count; i++) {
        Cursor record = cursor;
        int32_t size;
        if (!read_varint(&cursor, &size) || size < 0 || size > cursor.end - cursor.at)
            break; /* never, unless the bytes change while they are read */
        cursor.at += size;
        record.end = cursor.at;
        if (!marks[i])
            continue;
        if (rebase) {
            out = put_rebased(out, record, terms);
        } else {
            memcpy(out, record.at, (size_t)(record.end - record.at));
            out += record.end - record.at;
        }
    }
    return out;
}

static PyObject *kept_records(Cursor cursor, int64_t count, const uint8_t *marks,
                              const Terms *terms, const Choice *choice, bool rebase)
{
    Py_ssize_t room = choice->bytes + (rebase ? choice->kept * MOST_REBASE_GROWTH : 0);
    PyObject *made = PyByteArray_FromStringAndSize(NULL, HEADER_SIZE + room);
    if (made == NULL)
        return NULL;
    uint8_t *start = (uint8_t *)PyByteArray_AsString(made);
    memset(start, 0, HEADER_SIZE);
    uint8_t *end = put_kept(start + HEADER_SIZE, cursor, count, marks, terms, rebase);
    if (end - start < HEADER_SIZE + room && PyByteArray_Resize(made, end - start) < 0)
        Py_CLEAR(made);
    return made;
}

/* ---- the method ---- */

static PyObject *retained(OffsetMap *self, State *state, Cursor cursor, int64_t count,
                          const Terms *terms)
{
    uint8_t *marks = PyMem_Malloc(count ? (size_t)count : 1);
    if (marks == NULL)
        return PyErr_NoMemory();
    Choice choice;
    Progress progress = choose(self, terms, cursor, count, marks, &choice);
    PyObject *result = NULL;
    if (sound(state, progress.taken, progress.fault, progress.rest)) {
        bool rebase = choice.tombstones && terms->horizon >= 0;
        PyObject *made = choice.kept == count && !rebase
                             ? Py_NewRef(Py_None)
                             : kept_records(cursor, count, marks, terms, &choice, rebase);
        if (made != NULL)
            result = Py_BuildValue("(NLLO)", made, (long long)choice.kept,
                                   (long long)choice.max_timestamp, rebase ? Py_True : Py_False);
    }
    PyMem_Free(marks);
    return result;
}

PyObject *map_retain(PyObject *object, PyObject *const *args, Py_ssize_t nargs)
{
    OffsetMap *self = (OffsetMap *)object;
    State *state = PyType_GetModuleState(Py_TYPE(object));
    Terms terms;
    int64_t count;
    Py_buffer data;
    if (!argument_count("retain", nargs, 7) || !int64_argument(args[1], &count) ||
        !int64_argument(args[2], &terms.base_offset) ||
        !int64_argument(args[3], &terms.latest_offset) ||
        !int64_argument(args[4], &terms.base_timestamp) ||
        !int64_argument(args[6], &terms.horizon))
        return NULL;
    int drop = PyObject_IsTrue(args[5]);
    if (drop < 0 || PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0)
        return NULL;
    terms.drop_tombstones = drop;
    PyObject *result = NULL;
    if (plausible_count(state, count, data.len) && enter(self))
        result = retained(self, state, cursor_over(&data), count, &terms);
    PyBuffer_Release(&data);
    return result;
}
