/* OffsetMap: the last offset of each key, in a table of a fixed number of bytes.
 *
 * What compaction needs to know of a log: for each key, where it was last written. Keys are kept as
 * hashes of 128 bits, so an entry takes 24 bytes whatever its key. Two keys with the same hash
 * would be taken for one and a record would be lost; therefore the hash is SipHash, whose seed a
 * writer of keys does not know. Slots are probed one after the other, and some always stay empty:
 * an empty one ends the search.
 */
#include "map.h"

#include <string.h>

#define USUAL_LOAD 0.9 /* probing gets long in a fuller table */

/* ---- the table ---- */

Hash hash_key(const OffsetMap *self, Field key)
{
    Hash hash = siphash(self->seed, key.data, (size_t)key.size);
    __builtin_prefetch(home_slot(self, hash));
    return hash;
}

Slot *find_slot(const OffsetMap *self, Hash hash)
{
    Slot *slot = home_slot(self, hash);
    Slot *end = self->slots + self->slot_count;
    while (slot->after != 0 && (slot->hash.low != hash.low || slot->hash.high != hash.high)) {
        if (++slot == end)
            slot = self->slots;
    }
    return slot;
}

/* False when the key is new and there is no room for it. */
static bool put(OffsetMap *self, Hash hash, int64_t offset)
{
    Slot *slot = find_slot(self, hash);
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
    Hash hash;
    int64_t offset;
    int64_t index;
} Keyed;

/* Reads records until AT_ONCE of them have keys to be put. */
static Fault gather(const OffsetMap *self, Cursor *cursor, const Section *section, int64_t *index,
                    Keyed *keyed, int *found)
{
    for (*found = 0; *found < AT_ONCE && *index < section->count; ++*index) {
        RecordView record;
        Fault fault = read_record(cursor, &record);
        int64_t offset = fault ? 0 : wrapping_sum(section->base_offset, record.offset_delta);
        if (fault || offset < 0 || offset == INT64_MAX)
            return fault ? fault : WRONG_OFFSET;
        if (record.key.data != NULL && offset >= section->start_offset)
            keyed[(*found)++] = (Keyed){hash_key(self, record.key), offset, *index};
    }
    return FINE;
}

Progress put_section(OffsetMap *self, Section section)
{
    Cursor cursor = section.records;
    int64_t index = 0;
    while (index < section.count) {
        Keyed keyed[AT_ONCE];
        int found;
        Fault fault = gather(self, &cursor, &section, &index, keyed, &found);
        if (fault)
            return (Progress){index, fault, false};
        for (int i = 0; i < found; i++) {
            if (!put(self, keyed[i].hash, keyed[i].offset))
                return (Progress){keyed[i].index, FINE, false};
        }
    }
    return (Progress){section.count, FINE, cursor.at < cursor.end};
}

/* ---- the type ---- */

bool enter(OffsetMap *self)
{
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "the map is in use");
        return false;
    }
    return true;
}

static PyObject *map_get(PyObject *object, PyObject *argument)
{
    OffsetMap *self = (OffsetMap *)object;
    Py_buffer key;
    if (PyObject_GetBuffer(argument, &key, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *offset = NULL;
    if (enter(self))
        offset = PyLong_FromLongLong(find_slot(self, hash_key(self, field_over(&key)))->after - 1);
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
    Progress progress =
        put_section(self, (Section){cursor_over(&data), count, base_offset, start_offset});
    if (thread != NULL)
        PyEval_RestoreThread(thread);
    self->busy = false;
    PyBuffer_Release(&data);
    if (!sound(state, progress.taken, progress.fault, progress.rest))
        return NULL;
    return PyLong_FromLongLong(progress.taken);
}

static PyObject *map_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"", "", "", NULL};
    Py_ssize_t memory, seed_size;
    const char *seed;
    double load = USUAL_LOAD;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "ny#|d:OffsetMap", names, &memory, &seed,
                                     &seed_size, &load))
        return NULL;
    if (!(load > 0 && load <= 1)) {
        PyErr_SetString(PyExc_ValueError, "a map is filled to more than nothing, and to 1 at most");
        return NULL;
    }
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
    uint64_t wanted = (uint64_t)((double)slot_count * load);
    self->capacity = wanted < 1 ? 1 : wanted < slot_count ? wanted : slot_count - 1;
    read_seed(self->seed, seed);
    return (PyObject *)self;
}

static void map_dealloc(PyObject *object)
{
    PyMem_Free(((OffsetMap *)object)->slots);
    free_object(object);
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
    {"get", map_get, METH_O, NULL},
    {"put_records", (PyCFunction)(void (*)(void))map_put_records, METH_FASTCALL, NULL},
    {"retain", (PyCFunction)(void (*)(void))map_retain, METH_FASTCALL, NULL},
    {"put_plain", (PyCFunction)(void (*)(void))map_put_plain, METH_FASTCALL, NULL},
    {"retain_plain", (PyCFunction)(void (*)(void))map_retain_plain, METH_FASTCALL, NULL},
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
    .name = "scriba.native._native.OffsetMap",
    .basicsize = sizeof(OffsetMap),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = map_slots,
};
