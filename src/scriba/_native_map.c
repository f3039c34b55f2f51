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

#define USUAL_LOAD 0.9 /* probing gets long in a fuller table */

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

/* ---- what stays of a batch ---- */

typedef struct {
    int64_t base_offset;
    int64_t latest_offset; /* beyond it nothing is known, and all stays */
    int64_t base_timestamp;
    int64_t horizon; /* the new base timestamp of a batch with tombstones; -1 for none */
    bool drop_tombstones;
} Terms;

typedef struct {
    int64_t kept;
    int64_t max_timestamp;
    Py_ssize_t bytes; /* of the records that stay, as they are */
    bool tombstones;
} Choice;

static bool stays(const OffsetMap *self, const Terms *terms, const RecordView *record)
{
    int64_t offset = wrapping_sum(terms->base_offset, record->offset_delta);
    if (offset > terms->latest_offset)
        return true;
    if (record->key.data == NULL)
        return false;
    if (record->value.data == NULL && terms->drop_tombstones)
        return false;
    Hash hash;
    Cursor key = {record->key.data, record->key.data + record->key.size};
    return offset >= find(self, key, &hash)->after - 1;
}

/* Marks the records that stay; how many were read before a fault is in `taken`. */
static Progress choose(const OffsetMap *self, const Terms *terms, Cursor cursor, int64_t count,
                       uint8_t *marks, Choice *choice)
{
    *choice = (Choice){.max_timestamp = NO_TIMESTAMP};
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *start = cursor.at;
        RecordView record;
        Fault fault = read_record(&cursor, &record);
        if (fault)
            return (Progress){i, fault, false};
        marks[i] = stays(self, terms, &record);
        if (!marks[i])
            continue;
        int64_t timestamp = wrapping_sum(terms->base_timestamp, record.time_delta);
        if (timestamp > choice->max_timestamp)
            choice->max_timestamp = timestamp;
        choice->tombstones |= record.value.data == NULL;
        choice->bytes += cursor.at - start;
        choice->kept++;
    }
    return (Progress){count, FINE, cursor.at < cursor.end};
}

static uint8_t *put_number(uint8_t *out, int64_t number)
{
    uint64_t value = ((uint64_t)number << 1) ^ (0 - ((uint64_t)number >> 63));
    for (; value > 0x7F; value >>= 7)
        *out++ = (uint8_t)(value & 0x7F) | 0x80;
    *out++ = (uint8_t)value;
    return out;
}

static int number_size(int64_t number)
{
    uint8_t scratch[10];
    return (int)(put_number(scratch, number) - scratch);
}

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
    out = put_number(out, 1 + number_size(delta) + rest);
    *out++ = attributes;
    out = put_number(out, delta);
    memcpy(out, record.at, (size_t)rest);
    return out + rest;
}

static uint8_t *put_kept(uint8_t *out, Cursor cursor, int64_t count, const uint8_t *marks,
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

#define BATCH_HEADER_BYTES 61
#define MOST_REBASE_GROWTH 15 /* of a record: its length and its timestamp, at their longest */

static PyObject *kept_records(Cursor cursor, int64_t count, const uint8_t *marks,
                              const Terms *terms, const Choice *choice, bool rebase)
{
    Py_ssize_t room = choice->bytes + (rebase ? choice->kept * MOST_REBASE_GROWTH : 0);
    PyObject *made = PyByteArray_FromStringAndSize(NULL, BATCH_HEADER_BYTES + room);
    if (made == NULL)
        return NULL;
    uint8_t *start = (uint8_t *)PyByteArray_AsString(made);
    memset(start, 0, BATCH_HEADER_BYTES);
    uint8_t *end = put_kept(start + BATCH_HEADER_BYTES, cursor, count, marks, terms, rebase);
    if (end - start < BATCH_HEADER_BYTES + room && PyByteArray_Resize(made, end - start) < 0)
        Py_CLEAR(made);
    return made;
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

static PyObject *retained(OffsetMap *self, State *state, Cursor cursor, int64_t count,
                          const Terms *terms)
{
    uint8_t *marks = PyMem_Malloc(count ? (size_t)count : 1);
    if (marks == NULL)
        return PyErr_NoMemory();
    Choice choice;
    Progress progress = choose(self, terms, cursor, count, marks, &choice);
    PyObject *result = NULL;
    if (progress.fault) {
        set_fault(state, progress.taken, progress.fault);
    } else if (progress.rest) {
        set_rest(state);
    } else {
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

static PyObject *map_retain(PyObject *object, PyObject *const *args, Py_ssize_t nargs)
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
    {"retain", (PyCFunction)(void (*)(void))map_retain, METH_FASTCALL, NULL},
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
