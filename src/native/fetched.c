/* RecordFields and present_records: the records of a fetched batch as a consumer hands them out.
 *
 * RecordFields carries the fields of a class written in Python, which only inherits it: an object is
 * made without a call of Python, and its numbers become objects only when somebody asks for them.
 * Objects made here hold strings and bytes, which make no cycle, so the collector does not look at
 * them; from the first assignment to one of its fields on it does.
 */
#include "native.h"

#include <stddef.h>
#include <structmember.h>

typedef struct {
    PyObject_HEAD
    PyObject *topic;
    PyObject *timestamp_type;
    PyObject *key;
    PyObject *value;
    PyObject *headers;
    long long offset;
    long long timestamp;
    int partition;
    int leader_epoch;
} RecordFields;

static PyMemberDef members[] = {
    {"topic", T_OBJECT_EX, offsetof(RecordFields, topic), 0, NULL},
    {"partition", T_INT, offsetof(RecordFields, partition), 0, NULL},
    {"offset", T_LONGLONG, offsetof(RecordFields, offset), 0, NULL},
    {"timestamp", T_LONGLONG, offsetof(RecordFields, timestamp), 0, NULL},
    {"timestamp_type", T_OBJECT_EX, offsetof(RecordFields, timestamp_type), 0, NULL},
    {"key", T_OBJECT_EX, offsetof(RecordFields, key), 0, NULL},
    {"value", T_OBJECT_EX, offsetof(RecordFields, value), 0, NULL},
    {"headers", T_OBJECT_EX, offsetof(RecordFields, headers), 0, NULL},
    {"leader_epoch", T_INT, offsetof(RecordFields, leader_epoch), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static int fields_traverse(PyObject *object, visitproc visit, void *arg)
{
    RecordFields *self = (RecordFields *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->topic);
    Py_VISIT(self->timestamp_type);
    Py_VISIT(self->key);
    Py_VISIT(self->value);
    Py_VISIT(self->headers);
    return 0;
}

static int fields_clear(PyObject *object)
{
    RecordFields *self = (RecordFields *)object;
    Py_CLEAR(self->topic);
    Py_CLEAR(self->timestamp_type);
    Py_CLEAR(self->key);
    Py_CLEAR(self->value);
    Py_CLEAR(self->headers);
    return 0;
}

static void fields_dealloc(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    fields_clear(object);
    free_object(object);
}

static int fields_setattro(PyObject *object, PyObject *name, PyObject *value)
{
    if (!PyObject_GC_IsTracked(object))
        PyObject_GC_Track(object);
    return PyObject_GenericSetAttr(object, name, value);
}

static PyType_Slot fields_slots[] = {
    {Py_tp_members, members},
    {Py_tp_traverse, fields_traverse},
    {Py_tp_clear, fields_clear},
    {Py_tp_dealloc, fields_dealloc},
    {Py_tp_setattro, fields_setattro},
    {0, NULL},
};

PyType_Spec record_fields_spec = {
    .name = "scriba.native._native.RecordFields",
    .basicsize = sizeof(RecordFields),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = fields_slots,
};

/* ---- presenting ---- */

/* What all records of a batch have in common. */
typedef struct {
    PyObject *make;
    PyObject *topic;
    PyObject *timestamp_type;
    bool derived; /* whether `make` is a type that inherits RecordFields */
    int64_t base_offset;
    int64_t base_timestamp;
    int64_t start;
    const int64_t *append_time;
    int partition;
    int leader_epoch;
} Batch;

static PyObject *made_here(const Batch *batch, const RecordView *view, int64_t offset,
                           int64_t timestamp)
{
    PyObject *record = PyType_GenericAlloc((PyTypeObject *)batch->make, 0);
    if (record == NULL)
        return NULL;
    PyObject_GC_UnTrack(record);
    RecordFields *fields = (RecordFields *)record;
    fields->topic = Py_NewRef(batch->topic);
    fields->timestamp_type = Py_NewRef(batch->timestamp_type);
    fields->offset = offset;
    fields->timestamp = timestamp;
    fields->partition = batch->partition;
    fields->leader_epoch = batch->leader_epoch;
    fields->key = bytes_or_none(&view->key);
    fields->value = bytes_or_none(&view->value);
    fields->headers = headers_tuple(view);
    if (fields->key != NULL && fields->value != NULL && fields->headers != NULL)
        return record;
    Py_DECREF(record);
    return NULL;
}

static PyObject *made_by_call(const Batch *batch, const RecordView *view, int64_t offset,
                              int64_t timestamp)
{
    PyObject *key = bytes_or_none(&view->key);
    PyObject *value = bytes_or_none(&view->value);
    PyObject *headers = headers_tuple(view);
    PyObject *record = NULL;
    if (key != NULL && value != NULL && headers != NULL)
        record = PyObject_CallFunction(batch->make, "OiLLOOOOi", batch->topic, batch->partition,
                                       (long long)offset, (long long)timestamp,
                                       batch->timestamp_type, key, value, headers,
                                       batch->leader_epoch);
    Py_XDECREF(key);
    Py_XDECREF(value);
    Py_XDECREF(headers);
    return record;
}

static bool append_next(State *state, PyObject *records, Cursor *cursor, int64_t index,
                        const Batch *batch)
{
    RecordView view;
    if (!sound(state, index, read_record(cursor, &view), false))
        return false;
    int64_t offset = wrapping_sum(batch->base_offset, view.offset_delta);
    if (offset < batch->start)
        return true;
    int64_t timestamp = batch->append_time ? *batch->append_time
                                           : wrapping_sum(batch->base_timestamp, view.time_delta);
    PyObject *record = batch->derived ? made_here(batch, &view, offset, timestamp)
                                      : made_by_call(batch, &view, offset, timestamp);
    if (record == NULL)
        return false;
    int failed = PyList_Append(records, record);
    Py_DECREF(record);
    return failed == 0;
}

static PyObject *present_section(State *state, Cursor cursor, int64_t count, const Batch *batch)
{
    PyObject *records = PyList_New(0);
    if (records == NULL)
        return NULL;
    bool done = true;
    for (int64_t i = 0; done && i < count; i++)
        done = append_next(state, records, &cursor, i, batch);
    if (!done || !sound(state, count, FINE, cursor.at < cursor.end))
        Py_CLEAR(records);
    return records;
}

static bool int_argument(PyObject *argument, int *number)
{
    long value = PyLong_AsLong(argument);
    if (value == -1 && PyErr_Occurred() != NULL)
        return false;
    if (value < INT32_MIN || value > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a partition or epoch has 32 bits");
        return false;
    }
    *number = (int)value;
    return true;
}

PyObject *present_records(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    State *state = PyModule_GetState(module);
    int64_t count, time;
    Batch batch;
    if (!argument_count("present_records", nargs, 11) || !int64_argument(args[1], &count) ||
        !int64_argument(args[2], &batch.base_offset) ||
        !int64_argument(args[3], &batch.base_timestamp) ||
        !int64_argument(args[5], &batch.start) || !int_argument(args[8], &batch.partition) ||
        !int_argument(args[10], &batch.leader_epoch) ||
        !time_argument(args[4], &time, &batch.append_time))
        return NULL;
    batch.make = args[6];
    batch.topic = args[7];
    batch.timestamp_type = args[9];
    batch.derived =
        PyType_Check(batch.make) &&
        PyType_IsSubtype((PyTypeObject *)batch.make, (PyTypeObject *)state->record_fields);
    Py_buffer data;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *records = NULL;
    if (plausible_count(state, count, data.len))
        records = present_section(state, cursor_over(&data), count, &batch);
    PyBuffer_Release(&data);
    return records;
}
