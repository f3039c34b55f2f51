/* Records by column, in the layout of Arrow: Columns reads batches into buffers, and place_keys
 * finds the partitions of a column of keys.
 *
 * A column of bytes is a buffer of ends (the first is 0), one of contents, and one of bits, set for
 * every row that is not null. Rows are added or not at all: a batch that turns out to be malformed
 * leaves the columns as they were.
 */
#include "native.h"

#include <string.h>

typedef struct {
    char *data;
    size_t size;
    size_t capacity;
} Bytes;

typedef struct {
    Bytes ends;
    Bytes data;
    Bytes bits;
    int64_t nulls;
} Column;

typedef struct {
    PyObject_HEAD
    Bytes offsets;
    Bytes times;
    Bytes kinds;
    Column key;
    Column value;
    int64_t rows;
} Columns;

/* ---- growing buffers ---- */

static bool reserve(Bytes *bytes, size_t more)
{
    size_t needed = bytes->size + more;
    if (needed <= bytes->capacity)
        return true;
    size_t capacity = needed + needed / 2 + 64;
    char *data = PyMem_Realloc(bytes->data, capacity);
    if (data == NULL)
        return false;
    bytes->data = data;
    bytes->capacity = capacity;
    return true;
}

/* Into room that was reserved. */
static inline void put_bytes(Bytes *bytes, const void *data, size_t size)
{
    if (size)
        memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
}

static bool reserve_rows(Column *column, int64_t all, int64_t more)
{
    size_t bits = (size_t)(all + more + 7) / 8;
    if (!reserve(&column->ends, (size_t)(more + 1) * sizeof(int32_t)) ||
        !reserve(&column->bits, bits > column->bits.size ? bits - column->bits.size : 0))
        return false;
    if (column->ends.size == 0)
        put_bytes(&column->ends, &(int32_t){0}, sizeof(int32_t));
    while (column->bits.size < bits)
        column->bits.data[column->bits.size++] = 0;
    return true;
}

static bool put_field(Column *column, int64_t row, const Field *field)
{
    if (field->data == NULL) {
        column->nulls++;
    } else {
        if (!reserve(&column->data, (size_t)field->size))
            return false;
        put_bytes(&column->data, field->data, (size_t)field->size);
        column->bits.data[row >> 3] |= (char)(1 << (row & 7));
    }
    put_bytes(&column->ends, &(int32_t){(int32_t)column->data.size}, sizeof(int32_t));
    return true;
}

/* ---- adding a batch ---- */

typedef struct {
    int64_t count;
    int64_t base_offset;
    int64_t base_timestamp;
    int64_t first;
    int64_t end;
    const int64_t *append_time;
} Section;

static bool reserve_section(Columns *self, int64_t more)
{
    return reserve(&self->offsets, (size_t)more * sizeof(int64_t)) &&
           reserve(&self->times, (size_t)more * sizeof(int64_t)) &&
           reserve(&self->kinds, (size_t)more * sizeof(int32_t)) &&
           reserve_rows(&self->key, self->rows, more) &&
           reserve_rows(&self->value, self->rows, more);
}

static bool put_row(Columns *self, const Section *section, const RecordView *view, int64_t offset)
{
    int64_t time = section->append_time
                       ? *section->append_time
                       : wrapping_sum(section->base_timestamp, view->time_delta);
    int64_t micros = (int64_t)((uint64_t)time * 1000);
    int32_t kind = section->append_time != NULL;
    if (!put_field(&self->key, self->rows, &view->key) ||
        !put_field(&self->value, self->rows, &view->value))
        return false;
    put_bytes(&self->offsets, &offset, sizeof(offset));
    put_bytes(&self->times, &micros, sizeof(micros));
    put_bytes(&self->kinds, &kind, sizeof(kind));
    self->rows++;
    return true;
}

typedef enum { DONE, MALFORMED, REST, NO_MEMORY } Outcome;

static Outcome add_section(Columns *self, Cursor cursor, const Section *section, int64_t *index,
                           Fault *fault)
{
    RecordView view;
    for (*index = 0; *index < section->count; (*index)++) {
        *fault = read_record(&cursor, &view);
        if (*fault)
            return MALFORMED;
        int64_t offset = wrapping_sum(section->base_offset, view.offset_delta);
        if (offset < section->first || offset >= section->end)
            continue;
        if (!put_row(self, section, &view, offset))
            return NO_MEMORY;
    }
    return cursor.at == cursor.end ? DONE : REST;
}

static void cut_column(Column *column, int64_t rows, size_t data, int64_t nulls)
{
    column->ends.size = (size_t)(rows + 1) * sizeof(int32_t);
    column->data.size = data;
    column->nulls = nulls;
    column->bits.size = (size_t)(rows + 7) / 8;
    if (rows & 7)
        column->bits.data[rows >> 3] &= (char)((1 << (rows & 7)) - 1);
}

/* Adds a section, or raises and leaves all as it was. */
static bool add_or_nothing(State *state, Columns *self, Cursor cursor, const Section *section)
{
    int64_t rows = self->rows, index = 0;
    size_t key_size = self->key.data.size, value_size = self->value.data.size;
    int64_t key_nulls = self->key.nulls, value_nulls = self->value.nulls;
    size_t room = (size_t)(cursor.end - cursor.at);
    if (room + key_size > INT32_MAX || room + value_size > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a column has at most 2147483647 bytes");
        return false;
    }
    if (!reserve_section(self, section->count)) {
        PyErr_NoMemory();
        return false;
    }
    Fault fault = FINE;
    Outcome outcome = add_section(self, cursor, section, &index, &fault);
    cut_column(&self->key, outcome == DONE ? self->rows : rows,
               outcome == DONE ? self->key.data.size : key_size,
               outcome == DONE ? self->key.nulls : key_nulls);
    cut_column(&self->value, outcome == DONE ? self->rows : rows,
               outcome == DONE ? self->value.data.size : value_size,
               outcome == DONE ? self->value.nulls : value_nulls);
    if (outcome == DONE)
        return true;
    self->rows = rows;
    self->offsets.size = self->times.size = (size_t)rows * sizeof(int64_t);
    self->kinds.size = (size_t)rows * sizeof(int32_t);
    if (outcome == NO_MEMORY)
        PyErr_NoMemory();
    else
        sound(state, index, fault, outcome == REST);
    return false;
}

/* add(data, count, base_offset, base_timestamp, append_time, first, end): rows so far. */
static PyObject *columns_add(PyObject *object, PyTypeObject *defining, PyObject *const *args,
                             Py_ssize_t nargs, PyObject *Py_UNUSED(names))
{
    State *state = PyType_GetModuleState(defining);
    Columns *self = (Columns *)object;
    int64_t time;
    Section section;
    if (!argument_count("add", nargs, 7) || !int64_argument(args[1], &section.count) ||
        !int64_argument(args[2], &section.base_offset) ||
        !int64_argument(args[3], &section.base_timestamp) ||
        !int64_argument(args[5], &section.first) || !int64_argument(args[6], &section.end) ||
        !time_argument(args[4], &time, &section.append_time))
        return NULL;
    Py_buffer data;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0)
        return NULL;
    bool done = plausible_count(state, section.count, data.len) &&
                add_or_nothing(state, self, cursor_over(&data), &section);
    PyBuffer_Release(&data);
    return done ? PyLong_FromLongLong(self->rows) : NULL;
}

/* ---- handing over ---- */

static void release(Bytes *bytes)
{
    PyMem_Free(bytes->data);
    *bytes = (Bytes){NULL, 0, 0};
}

static void release_column(Column *column)
{
    release(&column->ends);
    release(&column->data);
    release(&column->bits);
    column->nulls = 0;
}

static void release_all(Columns *self)
{
    release(&self->offsets);
    release(&self->times);
    release(&self->kinds);
    release_column(&self->key);
    release_column(&self->value);
    self->rows = 0;
}

static PyObject *column_tuple(Column *column, int64_t rows)
{
    static const int32_t none = 0;
    const char *ends = rows ? column->ends.data : (const char *)&none;
    Py_ssize_t size = (Py_ssize_t)((rows + 1) * (int64_t)sizeof(int32_t));
    return Py_BuildValue("y#y#y#L", ends, size, column->data.data ? column->data.data : "",
                         (Py_ssize_t)column->data.size,
                         column->bits.data ? column->bits.data : "",
                         (Py_ssize_t)(rows + 7) / 8, (long long)column->nulls);
}

static PyObject *numbers(const Bytes *bytes)
{
    return PyBytes_FromStringAndSize(bytes->data, (Py_ssize_t)bytes->size);
}

/* take(): rows, offsets, times, kinds, key, value; begins anew. */
static PyObject *columns_take(PyObject *object, PyObject *Py_UNUSED(none))
{
    Columns *self = (Columns *)object;
    PyObject *taken =
        Py_BuildValue("LNNNNN", (long long)self->rows, numbers(&self->offsets),
                      numbers(&self->times), numbers(&self->kinds),
                      column_tuple(&self->key, self->rows), column_tuple(&self->value, self->rows));
    if (taken != NULL)
        release_all(self);
    return taken;
}

static PyObject *get_rows(PyObject *self, void *Py_UNUSED(none))
{
    return PyLong_FromLongLong(((Columns *)self)->rows);
}

static PyObject *get_bytes(PyObject *object, void *Py_UNUSED(none))
{
    Columns *self = (Columns *)object;
    return PyLong_FromSize_t(self->key.data.size + self->value.data.size);
}

static void columns_dealloc(PyObject *object)
{
    release_all((Columns *)object);
    free_object(object);
}

static PyMethodDef columns_methods[] = {
    {"add", (PyCFunction)(void (*)(void))columns_add,
     METH_METHOD | METH_FASTCALL | METH_KEYWORDS, NULL},
    {"take", columns_take, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef columns_getset[] = {
    {"rows", get_rows, NULL, NULL, NULL},
    {"bytes", get_bytes, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot columns_slots[] = {
    {Py_tp_dealloc, columns_dealloc},
    {Py_tp_methods, columns_methods},
    {Py_tp_getset, columns_getset},
    {0, NULL},
};

PyType_Spec columns_spec = {
    .name = "scriba.native._native.Columns",
    .basicsize = sizeof(Columns),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = columns_slots,
};

/* ---- columns that others hold ---- */

void let_column_go(ColumnView *column)
{
    while (column->held > 0)
        PyBuffer_Release(&column->views[--column->held]);
}

bool hold_column(PyObject *argument, ColumnView *column)
{
    *column = (ColumnView){.held = 0};
    if (!PyTuple_Check(argument) || PyTuple_Size(argument) != 3) {
        PyErr_SetString(PyExc_TypeError, "a column is a tuple of ends, data and bits or None");
        return false;
    }
    bool bits = PyTuple_GetItem(argument, 2) != Py_None;
    for (int i = 0; i < 2 + bits; i++) {
        if (PyObject_GetBuffer(PyTuple_GetItem(argument, i), &column->views[i], PyBUF_SIMPLE) < 0) {
            let_column_go(column);
            return false;
        }
        column->held++;
    }
    column->ends = column->views[0].buf;
    column->data = column->views[1].len ? column->views[1].buf : (const uint8_t *)"";
    column->bits = bits ? column->views[2].buf : NULL;
    column->rows = column->views[0].len / (Py_ssize_t)sizeof(int32_t) - 1;
    if (bits && column->rows > column->views[2].len * 8)
        column->rows = column->views[2].len * 8;
    return true;
}

bool column_field(const ColumnView *column, int64_t row, Field *field)
{
    *field = (Field){NULL, 0};
    if (column->bits != NULL && !(column->bits[row >> 3] & (1 << (row & 7))))
        return true;
    int32_t ends[2]; /* the buffer may begin anywhere */
    memcpy(ends, column->ends + row * (int64_t)sizeof(int32_t), sizeof(ends));
    if (ends[0] < 0 || ends[1] < ends[0] || ends[1] > column->views[1].len) {
        PyErr_SetString(PyExc_ValueError, "a column's ends lead outside of it");
        return false;
    }
    *field = (Field){column->data + ends[0], ends[1] - ends[0]};
    return true;
}

static PyObject *place_rows(const ColumnView *keys, int64_t begin, int64_t end, int64_t partitions,
                            int32_t otherwise)
{
    PyObject *places =
        PyBytes_FromStringAndSize(NULL, (Py_ssize_t)((end - begin) * (int64_t)sizeof(int32_t)));
    if (places == NULL)
        return NULL;
    char *out = PyBytes_AsString(places);
    for (int64_t row = begin; row < end; row++, out += sizeof(int32_t)) {
        Field key;
        if (!column_field(keys, row, &key)) {
            Py_DECREF(places);
            return NULL;
        }
        int32_t place = otherwise;
        if (key.data != NULL)
            place = (int32_t)((murmur2_of((Cursor){key.data, key.data + key.size}) & INT32_MAX) %
                              partitions);
        memcpy(out, &place, sizeof(place));
    }
    return places;
}

PyObject *place_keys(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    int64_t begin, end, partitions, otherwise;
    if (!argument_count("place_keys", nargs, 5) || !int64_argument(args[1], &begin) ||
        !int64_argument(args[2], &end) || !int64_argument(args[3], &partitions) ||
        !int64_argument(args[4], &otherwise))
        return NULL;
    ColumnView keys;
    if (!hold_column(args[0], &keys))
        return NULL;
    PyObject *places = NULL;
    if (begin < 0 || end < begin || end > keys.rows || partitions < 1 || partitions > INT32_MAX ||
        otherwise != (int32_t)otherwise)
        PyErr_SetString(PyExc_ValueError, "there are not so many rows, or no such partitions");
    else
        places = place_rows(&keys, begin, end, partitions, (int32_t)otherwise);
    let_column_go(&keys);
    return places;
}
