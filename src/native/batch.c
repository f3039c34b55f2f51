/* Form: the short way of a small Produce, from a frame to a batch that has been judged, and from
 * its offsets to the answer, in one call each.
 *
 * It knows the good case alone. For everything else the answer is None, and what is wrong, or
 * special, is found out at leisure by `scriba.records.validate`.
 */
#include "native.h"

#include <string.h>

#define HEADER_SIZE 61
#define LOG_OVERHEAD 12
#define CRC_START 21
#define BATCH_MAGIC 2
#define END_TAGS 3 /* of a partition, its topic and the request: none of them has tagged fields */
#define START 4    /* the API's key and version; the correlation id follows */
#define BODY 8
#define START_BEHIND 16 /* bytes from the hole of the base offset to that of the log's start */
#define SMALL 2048 /* up to here a checksum takes less time than a call of the library's */

typedef struct {
    PyObject_HEAD
    PyObject *start; /* bytes, as the next two */
    PyObject *body;
    PyObject *reply;
    Py_ssize_t hole;
    int64_t most;
    int64_t before;
    int64_t after;
    char compact;
    char starts; /* whether the answer tells where the log starts */
} Form;

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
    size_t size = (size_t)(batch.end - batch.at - CRC_START);
    if (size <= SMALL)
        return crc32c(batch.at + CRC_START, size) == (uint32_t)int32_at(batch.at + 17);
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

PyObject *header_tuple(State *state, const uint8_t *at)
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

static bool repeats(const Form *self, Cursor frame)
{
    Py_ssize_t size = PyBytes_Size(self->body);
    return frame.end - frame.at >= BODY + size &&
           memcmp(frame.at, PyBytes_AsString(self->start), START) == 0 &&
           memcmp(frame.at + BODY, PyBytes_AsString(self->body), (size_t)size) == 0;
}

static PyObject *form_take(PyObject *object, PyObject *const *args, Py_ssize_t nargs)
{
    Form *self = (Form *)object;
    int64_t now;
    Py_buffer data;
    if (!argument_count("take", nargs, 2) || !int64_argument(args[1], &now) ||
        PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0)
        return NULL;
    Cursor frame = cursor_over(&data), batch;
    PyObject *result = NULL;
    if (!repeats(self, frame)) {
        result = Py_NewRef(Py_None);
    } else {
        Rules rules = {.earliest = now - self->before, .latest = now + self->after};
        frame.at += BODY + PyBytes_Size(self->body);
        if (!last_field(frame, self->compact, &batch) || batch.end - batch.at > self->most)
            result = Py_NewRef(Py_None);
        else
            result = judge_batch(PyType_GetModuleState(Py_TYPE(object)), args[0], &data, batch,
                                 &rules);
    }
    PyBuffer_Release(&data);
    return result;
}

static PyObject *form_answer(PyObject *object, PyObject *const *args, Py_ssize_t nargs)
{
    Form *self = (Form *)object;
    int64_t base_offset, start_offset;
    Py_buffer frame;
    if (!argument_count("answer", nargs, 3) || !int64_argument(args[1], &base_offset) ||
        !int64_argument(args[2], &start_offset) ||
        PyObject_GetBuffer(args[0], &frame, PyBUF_SIMPLE) < 0)
        return NULL;
    Py_ssize_t size = PyBytes_Size(self->reply);
    PyObject *answer = PyByteArray_FromStringAndSize(PyBytes_AsString(self->reply), size);
    if (answer != NULL) {
        uint8_t *out = (uint8_t *)PyByteArray_AsString(answer);
        if (frame.len >= BODY)
            memcpy(out + START, (const uint8_t *)frame.buf + START, BODY - START);
        put_big_endian(out + self->hole, 8, (uint64_t)base_offset);
        if (self->starts)
            put_big_endian(out + self->hole + START_BEHIND, 8, (uint64_t)start_offset);
    }
    PyBuffer_Release(&frame);
    return answer;
}

/* ---- the type ---- */

static PyObject *form_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"", "", "", "", "", "", "", "", "", NULL};
    PyObject *start, *body, *reply;
    int compact, starts;
    long long most, before, after;
    Py_ssize_t hole;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "SSpLLLSnp:Form", names, &start, &body,
                                     &compact, &most, &before, &after, &reply, &hole, &starts))
        return NULL;
    Py_ssize_t holes = (starts ? START_BEHIND : 0) + (Py_ssize_t)sizeof(int64_t);
    if (PyBytes_Size(start) != START || hole < BODY || hole > PyBytes_Size(reply) - holes) {
        PyErr_SetString(PyExc_ValueError, "no such form");
        return NULL;
    }
    Form *self = (Form *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    self->start = Py_NewRef(start);
    self->body = Py_NewRef(body);
    self->reply = Py_NewRef(reply);
    self->hole = hole;
    self->most = most;
    self->before = before;
    self->after = after;
    self->compact = (char)compact;
    self->starts = (char)starts;
    return (PyObject *)self;
}

static void form_dealloc(PyObject *object)
{
    Form *self = (Form *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_CLEAR(self->start);
    Py_CLEAR(self->body);
    Py_CLEAR(self->reply);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyMethodDef form_methods[] = {
    {"take", (PyCFunction)(void (*)(void))form_take, METH_FASTCALL, NULL},
    {"answer", (PyCFunction)(void (*)(void))form_answer, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot form_slots[] = {
    {Py_tp_new, form_new},
    {Py_tp_methods, form_methods},
    {Py_tp_dealloc, form_dealloc},
    {0, NULL},
};

PyType_Spec form_spec = {
    .name = "scriba.native._native.Form",
    .basicsize = sizeof(Form),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = form_slots,
};
