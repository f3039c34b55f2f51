/* OffsetMap: the last offset of each key, in a table of a fixed number of bytes.
 *
 * What compaction needs to know of a log: for each key, where it was last written. Keys are kept as
 * hashes of 128 bits, so an entry takes 24 bytes whatever its key. Two keys with the same hash
 * would be taken for one and a record would be lost; therefore the hash is SipHash, whose seed a
 * writer of keys does not know. Slots are probed one after the other, and some always stay empty:
 * an empty one ends the search.
 */
#include "_native.h"

#include <string.h>

typedef struct {
    Hash hash;
    int64_t after; /* the offset plus one; 0 in an empty slot */
} Slot;

typedef struct {
    PyObject_HEAD
    Slot *slots;
    uint64_t slot_count;
    uint64_t capacity;
    uint64_t used;
    uint64_t seed[2];
    bool busy;
} OffsetMap;

/* ---- the table ---- */

/* The slot of this key, or the empty one where it belongs. */
static Slot *find(const OffsetMap *self, Cursor key, Hash *hash)
{
    *hash = siphash(self->seed, key.at, (size_t)(key.end - key.at));
    /* The first slot is the hash as a fraction of the table: no division, any number of slots. */
    uint64_t at = (hash->low >> 32) * self->slot_count >> 32;
    for (;;) {
        Slot *slot = &self->slots[at];
        if (slot->after == 0 || (slot->hash.low == hash->low && slot->hash.high == hash->high))
            return slot;
        if (++at == self->slot_count)
            at = 0;
    }
}

/* False when the key is new and there is no room for it. */
static bool put(OffsetMap *self, Cursor key, int64_t offset)
{
    Hash hash;
    Slot *slot = find(self, key, &hash);
    if (slot->after == 0) {
        if (self->used == self->capacity)
            return false;
        self->used++;
        slot->hash = hash;
    }
    slot->after = offset + 1;
    return true;
}

typedef struct {
    int64_t taken;
    Fault fault;
    bool rest;
} Progress;

static Progress put_section(OffsetMap *self, Cursor cursor, int64_t count, int64_t base_offset,
                            int64_t start_offset)
{
    for (int64_t i = 0; i < count; i++) {
        RecordView record;
        Fault fault = read_record(&cursor, &record);
        int64_t offset = fault ? 0 : wrapping_sum(base_offset, record.offset_delta);
        if (fault || offset < 0 || offset == INT64_MAX)
            return (Progress){i, fault ? fault : WRONG_OFFSET, false};
        if (record.key.data == NULL || offset < start_offset)
            continue;
        if (!put(self, (Cursor){record.key.data, record.key.data + record.key.size}, offset))
            return (Progress){i, FINE, false};
    }
    return (Progress){count, FINE, cursor.at < cursor.end};
}

/* ---- the type ---- */

static bool enter(OffsetMap *self)
{
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "the map is in use");
        return false;
    }
    return true;
}

static bool offset_argument(PyObject *argument, int64_t *offset)
{
    if (!int64_argument(argument, offset))
        return false;
    if (*offset >= 0 && *offset < INT64_MAX)
        return true;
    PyErr_SetString(PyExc_ValueError, "no offset of a record");
    return false;
}

static PyObject *map_put(PyObject *object, PyObject *const *args, Py_ssize_t nargs)
{
    OffsetMap *self = (OffsetMap *)object;
    int64_t offset;
    Py_buffer key;
    if (!argument_count("put", nargs, 2) || !offset_argument(args[1], &offset) ||
        PyObject_GetBuffer(args[0], &key, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *done = NULL;
    if (enter(self))
        done = PyBool_FromLong(put(self, cursor_over(&key), offset));
    PyBuffer_Release(&key);
    return done;
}

static PyObject *map_get(PyObject *object, PyObject *argument)
{
    OffsetMap *self = (OffsetMap *)object;
    Py_buffer key;
    if (PyObject_GetBuffer(argument, &key, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *offset = NULL;
    if (enter(self)) {
        Hash hash;
        offset = PyLong_FromLongLong(find(self, cursor_over(&key), &hash)->after - 1);
    }
    PyBuffer_Release(&key);
    return offset;
}

static PyObject *map_put_records(PyObject *object, PyObject *const *args, Py_ssize_t nargs)
{
    OffsetMap *self = (OffsetMap *)object;
    State *state = PyType_GetModuleState(Py_TYPE(object));
    int64_t count, base_offset, start_offset;
    Py_buffer data;
    if (!argument_count("put_records", nargs, 4) || !int64_argument(args[1], &count) ||
        !int64_argument(args[2], &base_offset) || !int64_argument(args[3], &start_offset) ||
        PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0)
        return NULL;
    if (!plausible_count(state, count, data.len) || !enter(self)) {
        PyBuffer_Release(&data);
        return NULL;
    }
    self->busy = true;
    PyThreadState *thread = data.len >= LONG_WALK_BYTES ? PyEval_SaveThread() : NULL;
    Progress progress = put_section(self, cursor_over(&data), count, base_offset, start_offset);
    if (thread != NULL)
        PyEval_RestoreThread(thread);
    self->busy = false;
    PyBuffer_Release(&data);
    if (progress.fault) {
        set_fault(state, progress.taken, progress.fault);
        return NULL;
    }
    if (progress.rest) {
        set_rest(state);
        return NULL;
    }
    return PyLong_FromLongLong(progress.taken);
}

static PyObject *map_clear(PyObject *object, PyObject *Py_UNUSED(none))
{
    OffsetMap *self = (OffsetMap *)object;
    if (!enter(self))
        return NULL;
    if (self->used)
        memset(self->slots, 0, self->slot_count * sizeof(Slot));
    self->used = 0;
    return Py_NewRef(Py_None);
}

static PyObject *map_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"", "", NULL};
    Py_ssize_t memory, seed_size;
    const char *seed;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "ny#:OffsetMap", names, &memory, &seed,
                                     &seed_size))
        return NULL;
    if (seed_size != SEED_BYTES) {
        PyErr_Format(PyExc_ValueError, "the seed has %d bytes, not %zd", SEED_BYTES, seed_size);
        return NULL;
    }
    uint64_t slot_count = memory < 0 ? 0 : (uint64_t)memory / sizeof(Slot);
    if (slot_count < 2 || slot_count > UINT32_MAX) {
        PyErr_Format(PyExc_ValueError, "a map of %zd bytes is too small or too large", memory);
        return NULL;
    }
    OffsetMap *self = (OffsetMap *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    self->slots = PyMem_Calloc((size_t)slot_count, sizeof(Slot));
    if (self->slots == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->slot_count = slot_count;
    self->capacity = slot_count - 1 - slot_count / 10; /* probing gets long in a fuller table */
    read_seed(self->seed, seed);
    return (PyObject *)self;
}

static void map_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyMem_Free(((OffsetMap *)object)->slots);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static Py_ssize_t map_length(PyObject *self)
{
    return (Py_ssize_t)((OffsetMap *)self)->used;
}

static PyObject *get_capacity(PyObject *self, void *Py_UNUSED(none))
{
    return PyLong_FromUnsignedLongLong(((OffsetMap *)self)->capacity);
}

static PyGetSetDef map_getset[] = {
    {"capacity", get_capacity, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef map_methods[] = {
    {"put", (PyCFunction)(void (*)(void))map_put, METH_FASTCALL, NULL},
    {"get", map_get, METH_O, NULL},
    {"put_records", (PyCFunction)(void (*)(void))map_put_records, METH_FASTCALL, NULL},
    {"clear", map_clear, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot map_slots[] = {
    {Py_tp_new, map_new},
    {Py_tp_dealloc, map_dealloc},
    {Py_tp_methods, map_methods},
    {Py_tp_getset, map_getset},
    {Py_sq_length, map_length},
    {0, NULL},
};

PyType_Spec offset_map_spec = {
    .name = "scriba._native.OffsetMap",
    .basicsize = sizeof(OffsetMap),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = map_slots,
};
