/* Builder: the records of a batch, encoded one after the other into one growing bytearray.
 *
 * The bytearray is longer than what is written to it, and is cut to size when it is taken. Headers
 * are encoded into a buffer of their own first, because a record begins with its length. Reading
 * an argument may run Python code that calls the same builder again: `busy` refuses that.
 */
#include "native.h"

#include <string.h>

#define MAX_VARINT_BYTES 5
#define FIRST_CAPACITY 1024

typedef struct {
    uint8_t *data;
    Py_ssize_t size;
    Py_ssize_t capacity;
} Scratch;

typedef struct {
    PyObject_HEAD
    PyObject *buffer; /* a bytearray, as long as there is room for */
    Py_ssize_t room;
    Py_ssize_t expected; /* room for this much is enough, as a rule */
    Py_ssize_t size;
    int64_t base_timestamp;
    int64_t max_timestamp;
    int32_t count;
    bool busy;
    Scratch headers;
} Builder;

/* Bytes of an argument. Those of anything but `bytes` are held by a view until `let_go`. */
typedef struct {
    const char *data; /* NULL for None */
    Py_ssize_t size;
    Py_buffer view;
    bool viewed;
} Content;

static bool hold(PyObject *argument, Content *content)
{
    content->data = NULL;
    content->size = 0;
    content->viewed = false;
    if (argument == Py_None)
        return true;
    if (PyBytes_Check(argument)) {
        char *data;
        if (PyBytes_AsStringAndSize(argument, &data, &content->size) < 0)
            return false;
        content->data = data;
        return true;
    }
    if (PyObject_GetBuffer(argument, &content->view, PyBUF_SIMPLE) < 0)
        return false;
    content->viewed = true;
    content->data = content->view.len ? content->view.buf : "";
    content->size = content->view.len;
    return true;
}

static void let_go(Content *content)
{
    if (content->viewed)
        PyBuffer_Release(&content->view);
}

static inline int64_t content_size(const Content *content)
{
    if (content->data == NULL)
        return 1;
    return varint_size(content->size) + content->size;
}

static inline uint8_t *put_content(uint8_t *out, const Content *content)
{
    if (content->data == NULL)
        return put_varint(out, -1);
    out = put_varint(out, content->size);
    memcpy(out, content->data, (size_t)content->size);
    return out + content->size;
}

static bool fits(int64_t size)
{
    if (size <= INT32_MAX)
        return true;
    PyErr_SetString(PyExc_OverflowError, "a record has at most 2147483647 bytes");
    return false;
}

/* ---- headers ---- */

static bool put_scratch(Scratch *scratch, const Content *content)
{
    int64_t needed = (int64_t)scratch->size + MAX_VARINT_BYTES + content->size;
    if (!fits(needed))
        return false;
    if (needed > scratch->capacity) {
        size_t capacity = (size_t)needed + (size_t)needed / 2;
        uint8_t *data = PyMem_Realloc(scratch->data, capacity);
        if (data == NULL) {
            PyErr_NoMemory();
            return false;
        }
        scratch->data = data;
        scratch->capacity = (Py_ssize_t)capacity;
    }
    scratch->size = put_content(scratch->data + scratch->size, content) - scratch->data;
    return true;
}

static bool put_header(Scratch *scratch, PyObject *pair)
{
    if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2 ||
        !PyUnicode_Check(PyTuple_GetItem(pair, 0))) {
        PyErr_SetString(PyExc_TypeError, "a header is a tuple of a string and bytes or None");
        return false;
    }
    Content name = {.viewed = false}, content;
    name.data = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(pair, 0), &name.size);
    if (name.data == NULL || !put_scratch(scratch, &name) ||
        !hold(PyTuple_GetItem(pair, 1), &content))
        return false;
    bool done = put_scratch(scratch, &content);
    let_go(&content);
    return done;
}

/* How many headers there are, -1 with an exception; they are then in `scratch`. */
static Py_ssize_t put_headers(Scratch *scratch, PyObject *headers)
{
    scratch->size = 0;
    if (PyTuple_CheckExact(headers) && PyTuple_Size(headers) == 0)
        return 0;
    PyObject *pairs = PySequence_Tuple(headers);
    if (pairs == NULL)
        return -1;
    Py_ssize_t count = PyTuple_Size(pairs);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!put_header(scratch, PyTuple_GetItem(pairs, i))) {
            count = -1;
            break;
        }
    }
    Py_DECREF(pairs);
    return count;
}

/* ---- records ---- */

static bool grow(Builder *self, Py_ssize_t more)
{
    if (more > PY_SSIZE_T_MAX / 2 - self->size) {
        PyErr_NoMemory();
        return false;
    }
    Py_ssize_t needed = self->size + more;
    Py_ssize_t capacity = PyByteArray_Size(self->buffer);
    if (needed <= capacity)
        return true;
    Py_ssize_t wanted = capacity < FIRST_CAPACITY / 2 ? FIRST_CAPACITY : 2 * capacity;
    if (wanted > self->expected && needed <= self->expected)
        wanted = self->expected;
    return PyByteArray_Resize(self->buffer, needed > wanted ? needed : wanted) == 0;
}

static bool put_record(Builder *self, int64_t timestamp, const Content *key, const Content *value,
                       Py_ssize_t header_count)
{
    if (self->count == INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a batch has at most 2147483647 records");
        return false;
    }
    int64_t base = self->count ? self->base_timestamp : timestamp;
    int64_t delta = (int64_t)((uint64_t)timestamp - (uint64_t)base);
    int64_t body = 1 + varint_size(delta) + varint_size(self->count) + content_size(key) +
                   content_size(value) + varint_size(header_count) + self->headers.size;
    if (!fits(body) || !grow(self, MAX_VARINT_BYTES + (Py_ssize_t)body))
        return false;
    uint8_t *start = (uint8_t *)PyByteArray_AsString(self->buffer);
    uint8_t *out = put_varint(start + self->size, body);
    *out++ = 0; /* attributes */
    out = put_varint(out, delta);
    out = put_varint(out, self->count);
    out = put_content(out, key);
    out = put_content(out, value);
    out = put_varint(out, header_count);
    if (self->headers.size)
        memcpy(out, self->headers.data, (size_t)self->headers.size);
    self->size = out + self->headers.size - start;
    self->base_timestamp = base;
    if (timestamp > self->max_timestamp)
        self->max_timestamp = timestamp;
    self->count++;
    return true;
}

static bool add_held(Builder *self, int64_t time, PyObject *key, PyObject *value,
                     PyObject *headers)
{
    Content held_key, held_value;
    if (!hold(key, &held_key))
        return false;
    bool done = false;
    if (hold(value, &held_value)) {
        Py_ssize_t header_count = put_headers(&self->headers, headers);
        done = header_count >= 0 &&
               put_record(self, time, &held_key, &held_value, header_count);
        let_go(&held_value);
    }
    let_go(&held_key);
    return done;
}

static bool add(Builder *self, int64_t time, PyObject *key, PyObject *value, PyObject *headers)
{
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "the builder is in use");
        return false;
    }
    self->busy = true;
    bool done = add_held(self, time, key, value, headers);
    self->busy = false;
    return done;
}

bool builder_add(PyObject *object, int64_t timestamp, PyObject *key, PyObject *value,
                 PyObject *headers, int32_t *index)
{
    Builder *self = (Builder *)object;
    *index = self->count;
    return add(self, timestamp, key, value, headers);
}

Py_ssize_t builder_size(PyObject *object)
{
    return ((Builder *)object)->size;
}

static PyObject *builder_append(PyObject *object, PyObject *const *args, Py_ssize_t nargs)
{
    Builder *self = (Builder *)object;
    int64_t time;
    if (!argument_count("append", nargs, 4) || !int64_argument(args[0], &time) ||
        !add(self, time, args[1], args[2], args[3]))
        return NULL;
    return PyLong_FromSsize_t(self->size);
}

static bool put_row(Builder *self, int64_t timestamp, const ColumnView *keys,
                    const ColumnView *values, int64_t row)
{
    Field key = {NULL, 0}, value;
    if ((keys != NULL && !column_field(keys, row, &key)) || !column_field(values, row, &value))
        return false;
    Content held_key = {.data = (const char *)key.data, .size = key.size};
    Content held_value = {.data = (const char *)value.data, .size = value.size};
    return put_record(self, timestamp, &held_key, &held_value, 0);
}

static PyObject *put_rows(Builder *self, PyObject *const *args, const ColumnView *keys,
                          const ColumnView *values)
{
    int64_t timestamp, row, end, limit;
    if (!int64_argument(args[0], &timestamp) || !int64_argument(args[3], &row) ||
        !int64_argument(args[4], &end) || !int64_argument(args[5], &limit))
        return NULL;
    if (row < 0 || end > values->rows || (keys != NULL && end > keys->rows)) {
        PyErr_SetString(PyExc_ValueError, "there are not so many rows");
        return NULL;
    }
    self->headers.size = 0;
    for (bool full = false; row < end && !full; row++, full = self->size >= limit) {
        if (!put_row(self, timestamp, keys, values, row))
            return NULL;
    }
    return PyLong_FromLongLong(row);
}

PyObject *append_rows(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!argument_count("append_rows", nargs, 7))
        return NULL;
    if (!is_builder(args[0])) {
        PyErr_SetString(PyExc_TypeError, "rows are appended to a Builder");
        return NULL;
    }
    Builder *self = (Builder *)args[0];
    args++;
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "the builder is in use");
        return NULL;
    }
    ColumnView keys, values;
    bool keyed = args[1] != Py_None;
    if (keyed && !hold_column(args[1], &keys))
        return NULL;
    PyObject *next = NULL;
    if (hold_column(args[2], &values)) {
        self->busy = true;
        next = put_rows(self, args, keyed ? &keys : NULL, &values);
        self->busy = false;
        let_column_go(&values);
    }
    if (keyed)
        let_column_go(&keys);
    return next;
}

static bool start_anew(Builder *self)
{
    PyObject *buffer = PyByteArray_FromStringAndSize(NULL, self->room);
    if (buffer == NULL)
        return false;
    memset(PyByteArray_AsString(buffer), 0, (size_t)self->room);
    self->buffer = buffer;
    self->size = self->room;
    self->base_timestamp = self->max_timestamp = NO_TIMESTAMP;
    self->count = 0;
    return true;
}

static PyObject *builder_take(PyObject *object, PyObject *Py_UNUSED(none))
{
    Builder *self = (Builder *)object;
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "the builder is in use");
        return NULL;
    }
    PyObject *taken = self->buffer;
    if (PyByteArray_Resize(taken, self->size) < 0 || !start_anew(self))
        return NULL;
    return taken;
}

/* ---- the type ---- */

static PyObject *builder_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"", "", NULL};
    Py_ssize_t room = 0, expected = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|nn:Builder", names, &room, &expected))
        return NULL;
    if (room < 0) {
        PyErr_SetString(PyExc_ValueError, "room cannot be negative");
        return NULL;
    }
    Builder *self = (Builder *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    self->room = room;
    self->expected = expected;
    if (!start_anew(self))
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void builder_dealloc(PyObject *object)
{
    Builder *self = (Builder *)object;
    Py_XDECREF(self->buffer);
    PyMem_Free(self->headers.data);
    free_object(object);
}

bool is_builder(PyObject *object)
{
    return PyType_GetSlot(Py_TYPE(object), Py_tp_dealloc) == (void *)builder_dealloc;
}

static PyObject *get_count(PyObject *self, void *Py_UNUSED(none))
{
    return PyLong_FromLong(((Builder *)self)->count);
}

static PyObject *get_size(PyObject *self, void *Py_UNUSED(none))
{
    return PyLong_FromSsize_t(((Builder *)self)->size);
}

static PyObject *get_base_timestamp(PyObject *self, void *Py_UNUSED(none))
{
    return PyLong_FromLongLong(((Builder *)self)->base_timestamp);
}

static PyObject *get_max_timestamp(PyObject *self, void *Py_UNUSED(none))
{
    return PyLong_FromLongLong(((Builder *)self)->max_timestamp);
}

static PyGetSetDef builder_getset[] = {
    {"count", get_count, NULL, NULL, NULL},
    {"size", get_size, NULL, NULL, NULL},
    {"base_timestamp", get_base_timestamp, NULL, NULL, NULL},
    {"max_timestamp", get_max_timestamp, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef builder_methods[] = {
    {"append", (PyCFunction)(void (*)(void))builder_append, METH_FASTCALL, NULL},
    {"take", builder_take, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot builder_slots[] = {
    {Py_tp_new, builder_new},
    {Py_tp_dealloc, builder_dealloc},
    {Py_tp_methods, builder_methods},
    {Py_tp_getset, builder_getset},
    {0, NULL},
};

PyType_Spec builder_spec = {
    .name = "scriba.native._native.Builder",
    .basicsize = sizeof(Builder),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = builder_slots,
};
