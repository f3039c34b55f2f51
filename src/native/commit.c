/* CommitBytes: the fast path of an OffsetCommit, from a frame to the batch that stores its offsets,
 * in one call.
 *
 * The batch is the caller's own memory, filled in anew each time. Nothing else is known here of
 * what the bytes mean: where the offsets stand was located by the schema.
 */
#include "layout.h"
#include "native.h"

#include <string.h>

#define START 4     /* the API's key and version; the correlation id follows */
#define BODY 8
#define WORD 8

typedef struct {
    Py_ssize_t frame;  /* where the offset stands in the request */
    Py_ssize_t offset; /* and in the batch */
    Py_ssize_t time;
} Hole;

typedef struct {
    PyObject_HEAD
    PyObject *frame; /* bytes */
    Py_buffer batch;
    Hole *holes;
    Py_ssize_t count;
} CommitBytes;

/* Whether a request is the same, but for the correlation id and the offsets. */
static bool repeats(const CommitBytes *self, const Py_buffer *frame)
{
    const uint8_t *mine = (const uint8_t *)PyBytes_AsString(self->frame), *other = frame->buf;
    if (frame->len != PyBytes_Size(self->frame) || memcmp(mine, other, START) != 0)
        return false;
    Py_ssize_t at = BODY;
    for (Py_ssize_t i = 0; i < self->count; i++) {
        Py_ssize_t hole = self->holes[i].frame;
        if (memcmp(mine + at, other + at, (size_t)(hole - at)) != 0)
            return false;
        at = hole + WORD;
    }
    return memcmp(mine + at, other + at, (size_t)(frame->len - at)) == 0;
}

/* The offsets of a request, which are in the batch then. */
static PyObject *fill(const State *state, CommitBytes *self, const uint8_t *frame, int64_t now)
{
    PyObject *offsets = PyTuple_New(self->count);
    uint8_t *out = self->batch.buf;
    for (Py_ssize_t i = 0; offsets != NULL && i < self->count; i++) {
        const Hole *hole = &self->holes[i];
        memcpy(out + hole->offset, frame + hole->frame, WORD);
        put_big_endian(out + hole->time, WORD, (uint64_t)now);
        int64_t offset = (int64_t)big_endian(frame + hole->frame, WORD);
        if (!put_item(offsets, i, PyLong_FromLongLong(offset)))
            Py_CLEAR(offsets);
    }
    put_big_endian(out + BASE_TIMESTAMP_AT, WORD, (uint64_t)now);
    put_big_endian(out + MAX_TIMESTAMP_AT, WORD, (uint64_t)now);
    uint32_t crc;
    if (offsets != NULL && !crc32c(state, out + CRC_START, self->batch.len - CRC_START, &crc))
        Py_CLEAR(offsets);
    if (offsets != NULL)
        put_big_endian(out + CRC_AT, 4, crc);
    return offsets;
}

static PyObject *commit_take(PyObject *object, PyObject *const *args, Py_ssize_t nargs)
{
    CommitBytes *self = (CommitBytes *)object;
    int64_t now;
    Py_buffer frame;
    if (!argument_count("take", nargs, 2) || !int64_argument(args[1], &now) ||
        PyObject_GetBuffer(args[0], &frame, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *result;
    if (!repeats(self, &frame)) {
        result = Py_NewRef(Py_None);
    } else {
        result = PyTuple_New(2);
        State *state = PyType_GetModuleState(Py_TYPE(object));
        if (result != NULL && (!put_item(result, 0, fill(state, self, frame.buf, now)) ||
                               !put_item(result, 1, header_tuple(state, self->batch.buf))))
            Py_CLEAR(result);
    }
    PyBuffer_Release(&frame);
    return result;
}

/* ---- the type ---- */

static bool word_fits(Py_ssize_t at, Py_ssize_t least, Py_ssize_t size)
{
    return at >= least && at <= size - WORD;
}

/* Holes come in the order of the request, and do not overlap in it. */
static bool read_holes(CommitBytes *self, PyObject *holes)
{
    Py_ssize_t least = BODY;
    for (Py_ssize_t i = 0; i < self->count; i++) {
        Hole *hole = &self->holes[i];
        PyObject *item = PyTuple_GetItem(holes, i);
        if (item == NULL || !PyArg_ParseTuple(item, "nnn", &hole->frame, &hole->offset,
                                              &hole->time))
            return false;
        if (!word_fits(hole->frame, least, PyBytes_Size(self->frame)) ||
            !word_fits(hole->offset, HEADER_SIZE, self->batch.len) ||
            !word_fits(hole->time, HEADER_SIZE, self->batch.len)) {
            PyErr_SetString(PyExc_ValueError, "no offset can be there");
            return false;
        }
        least = hole->frame + WORD;
    }
    return true;
}

static PyObject *commit_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"", "", "", NULL};
    PyObject *frame, *batch, *holes;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "SOO!:CommitBytes", names, &frame, &batch,
                                     &PyTuple_Type, &holes))
        return NULL;
    CommitBytes *self = (CommitBytes *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    self->frame = Py_NewRef(frame);
    self->count = PyTuple_Size(holes);
    self->holes = PyMem_Calloc((size_t)self->count, sizeof(Hole));
    if (self->holes == NULL)
        PyErr_NoMemory();
    else if (PyObject_GetBuffer(batch, &self->batch, PyBUF_WRITABLE) == 0) {
        if (PyBytes_Size(frame) >= BODY && self->batch.len >= HEADER_SIZE) {
            if (read_holes(self, holes))
                return (PyObject *)self;
        } else {
            PyErr_SetString(PyExc_ValueError, "no offset can be there");
        }
    }
    Py_DECREF(self);
    return NULL;
}

static void commit_dealloc(PyObject *object)
{
    CommitBytes *self = (CommitBytes *)object;
    Py_CLEAR(self->frame);
    PyBuffer_Release(&self->batch);
    PyMem_Free(self->holes);
    free_object(object);
}

static PyMethodDef commit_methods[] = {
    {"take", (PyCFunction)(void (*)(void))commit_take, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot commit_slots[] = {
    {Py_tp_new, commit_new},
    {Py_tp_methods, commit_methods},
    {Py_tp_dealloc, commit_dealloc},
    {0, NULL},
};

PyType_Spec commit_bytes_spec = {
    .name = "scriba.native._native.CommitBytes",
    .basicsize = sizeof(CommitBytes),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = commit_slots,
};
