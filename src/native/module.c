/* Records at native speed: the module, and reading the records of a batch.
 *
 * `scriba.native.fallback` does the same in Python and says what each function means; this module
 * is chosen over it in `scriba.native.implementation`. It is written against the stable interface
 * of CPython 3.11, so that one build serves every later release.
 */
#include "native.h"

#include <stdlib.h>

static const char *const FAULTS[] = {
    [FINE] = "nothing is wrong",
    [PAST_END] = "it reaches past the end of the batch",
    [BAD_NUMBER] = "a number in it is cut short or too long",
    [FIELD_PAST_END] = "a field reaches past its end",
    [BAD_HEADER_COUNT] = "its number of headers is impossible",
    [NAMELESS_HEADER] = "a header has no name",
    [WRONG_LENGTH] = "its length does not fit its content",
    [WRONG_OFFSET] = "its offset is not its place in the batch",
};

bool sound(State *state, int64_t index, Fault fault, bool rest)
{
    if (fault)
        PyErr_Format(state->parse_error, "record %lld is malformed: %s", (long long)index,
                     FAULTS[fault]);
    else if (rest)
        PyErr_SetString(state->parse_error, "more follows the last record of the batch");
    return !fault && !rest;
}

bool plausible_count(State *state, int64_t count, Py_ssize_t size)
{
    if (count >= 0 && count <= size / MIN_RECORD_BYTES)
        return true;
    PyErr_Format(state->parse_error, "%zd bytes cannot hold %lld records", size,
                 (long long)count);
    return false;
}

bool int64_argument(PyObject *argument, int64_t *number)
{
    *number = PyLong_AsLongLong(argument);
    return *number != -1 || PyErr_Occurred() == NULL;
}

bool time_argument(PyObject *argument, int64_t *time, const int64_t **given)
{
    *given = argument == Py_None ? NULL : time;
    return *given == NULL || int64_argument(argument, time);
}

void free_object(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

bool argument_count(const char *function, Py_ssize_t given, Py_ssize_t wanted)
{
    if (given == wanted)
        return true;
    PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments, not %zd", function, wanted, given);
    return false;
}

static Fault skip_headers(Cursor *cursor, int32_t count)
{
    Field field;
    for (int32_t i = 0; i < count; i++) {
        Fault fault = read_field(cursor, &field);
        if (fault)
            return fault;
        if (field.data == NULL)
            return NAMELESS_HEADER;
        fault = read_field(cursor, &field);
        if (fault)
            return fault;
    }
    return FINE;
}

Fault read_body(Cursor cursor, RecordView *record)
{
    if (cursor.at == cursor.end)
        return BAD_NUMBER;
    cursor.at++; /* attributes, which have no meaning yet */
    if (!read_varlong(&cursor, &record->time_delta) ||
        !read_varint(&cursor, &record->offset_delta))
        return BAD_NUMBER;
    Fault fault = read_field(&cursor, &record->key);
    if (fault)
        return fault;
    fault = read_field(&cursor, &record->value);
    if (fault)
        return fault;
    if (!read_varint(&cursor, &record->header_count))
        return BAD_NUMBER;
    if (record->header_count < 0 || record->header_count > cursor.end - cursor.at)
        return BAD_HEADER_COUNT;
    record->headers = cursor;
    fault = skip_headers(&cursor, record->header_count);
    if (fault)
        return fault;
    return cursor.at == cursor.end ? FINE : WRONG_LENGTH;
}

Fault read_record(Cursor *cursor, RecordView *record)
{
    int32_t size;
    if (!read_varint(cursor, &size))
        return BAD_NUMBER;
    if (size < 0 || size > cursor->end - cursor->at)
        return PAST_END;
    Cursor body = {cursor->at, cursor->at + size};
    cursor->at = body.end;
    return read_body(body, record);
}

/* ---- decoding ---- */

PyObject *bytes_or_none(const Field *field)
{
    if (field->data == NULL)
        return Py_NewRef(Py_None);
    return PyBytes_FromStringAndSize((const char *)field->data, field->size);
}

PyObject *new_tuple(PyObject *type, Py_ssize_t size)
{
    PyObject *made = PyType_GenericAlloc((PyTypeObject *)type, size);
    if (made != NULL)
        PyObject_GC_UnTrack(made);
    return made;
}

bool put_item(PyObject *tuple, Py_ssize_t index, PyObject *item)
{
    return item != NULL && PyTuple_SetItem(tuple, index, item) == 0;
}

/* A header of a record that `read_record` found fine. */
static PyObject *next_header(Cursor *cursor)
{
    Field name, content;
    if (read_field(cursor, &name) || name.data == NULL || read_field(cursor, &content)) {
        PyErr_SetString(PyExc_RuntimeError, "the records changed while they were read");
        return NULL;
    }
    PyObject *pair = PyTuple_New(2);
    if (pair != NULL &&
        put_item(pair, 0, PyUnicode_DecodeUTF8((const char *)name.data, name.size, "replace")) &&
        put_item(pair, 1, bytes_or_none(&content)))
        return pair;
    Py_XDECREF(pair);
    return NULL;
}

PyObject *headers_tuple(const RecordView *record)
{
    Cursor cursor = record->headers;
    PyObject *headers = PyTuple_New(record->header_count);
    for (int32_t i = 0; headers != NULL && i < record->header_count; i++) {
        if (!put_item(headers, i, next_header(&cursor)))
            Py_CLEAR(headers);
    }
    return headers;
}

static PyObject *new_record(State *state, const RecordView *view, int64_t base_offset,
                            int64_t timestamp)
{
    PyObject *record = new_tuple(state->record, 5);
    if (record == NULL)
        return NULL;
    if (put_item(record, 0, PyLong_FromLongLong(wrapping_sum(base_offset, view->offset_delta))) &&
        put_item(record, 1, PyLong_FromLongLong(timestamp)) &&
        put_item(record, 2, bytes_or_none(&view->key)) &&
        put_item(record, 3, bytes_or_none(&view->value)) &&
        put_item(record, 4, headers_tuple(view)))
        return record;
    Py_DECREF(record);
    return NULL;
}

static PyObject *decode_section(State *state, Cursor cursor, int64_t count, int64_t base_offset,
                                int64_t base_timestamp, const int64_t *append_time)
{
    PyObject *records = PyList_New((Py_ssize_t)count);
    if (records == NULL)
        return NULL;
    for (int64_t i = 0; i < count; i++) {
        RecordView view;
        if (!sound(state, i, read_record(&cursor, &view), false))
            goto failed;
        int64_t timestamp =
            append_time ? *append_time : wrapping_sum(base_timestamp, view.time_delta);
        PyObject *record = new_record(state, &view, base_offset, timestamp);
        if (record == NULL)
            goto failed;
        PyList_SetItem(records, (Py_ssize_t)i, record);
    }
    if (sound(state, count, FINE, cursor.at < cursor.end))
        return records;
failed:
    Py_DECREF(records);
    return NULL;
}

static PyObject *decode_records(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    State *state = PyModule_GetState(module);
    int64_t count, base_offset, base_timestamp, time;
    const int64_t *append_time;
    if (!argument_count("decode_records", nargs, 5) || !int64_argument(args[1], &count) ||
        !int64_argument(args[2], &base_offset) || !int64_argument(args[3], &base_timestamp) ||
        !time_argument(args[4], &time, &append_time))
        return NULL;
    Py_buffer data;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *records = NULL;
    if (plausible_count(state, count, data.len)) {
        records = decode_section(state, cursor_over(&data), count, base_offset, base_timestamp,
                                 append_time);
    }
    PyBuffer_Release(&data);
    return records;
}

/* ---- the module ---- */

static PyMethodDef functions[] = {
    {"decode_records", (PyCFunction)(void (*)(void))decode_records, METH_FASTCALL, NULL},
    {"present_records", (PyCFunction)(void (*)(void))present_records, METH_FASTCALL, NULL},
    {"check_records", (PyCFunction)(void (*)(void))check_records, METH_FASTCALL, NULL},
    {"check_lz4", (PyCFunction)(void (*)(void))check_lz4, METH_FASTCALL, NULL},
    {"blame_records", (PyCFunction)(void (*)(void))blame_records, METH_FASTCALL, NULL},
    {"find_record", (PyCFunction)(void (*)(void))find_record, METH_FASTCALL, NULL},
    {"locate", (PyCFunction)(void (*)(void))locate, METH_FASTCALL, NULL},
    {"judge_produce", (PyCFunction)(void (*)(void))judge_produce, METH_FASTCALL, NULL},
    {"checked_batches", (PyCFunction)(void (*)(void))checked_batches, METH_FASTCALL, NULL},
    {"walk_headers", (PyCFunction)(void (*)(void))walk_headers, METH_FASTCALL, NULL},
    {"murmur2", murmur2, METH_O, NULL},
    {"place_keys", (PyCFunction)(void (*)(void))place_keys, METH_FASTCALL, NULL},
    {"append_rows", (PyCFunction)(void (*)(void))append_rows, METH_FASTCALL, NULL},
    {"siphash", siphash_digest, METH_VARARGS, NULL},
    {"crc32c_of", crc32c_of, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyObject *imported(const char *module, const char *name)
{
    PyObject *source = PyImport_ImportModule(module);
    if (source == NULL)
        return NULL;
    PyObject *found = PyObject_GetAttrString(source, name);
    Py_DECREF(source);
    return found;
}

/* A class whose instances are made here, without a call. */
static PyObject *imported_tuple(const char *module, const char *name)
{
    PyObject *found = imported(module, name);
    if (found == NULL || (PyType_Check(found) &&
                          PyType_IsSubtype((PyTypeObject *)found, &PyTuple_Type)))
        return found;
    PyErr_Format(PyExc_TypeError, "%s.%s must be a tuple", module, name);
    Py_DECREF(found);
    return NULL;
}

/* A new reference to a type that the module now has. */
static PyObject *added_type(PyObject *module, PyType_Spec *spec)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    if (type != NULL && PyModule_AddType(module, (PyTypeObject *)type) < 0)
        Py_CLEAR(type);
    return type;
}

static int add_type(PyObject *module, PyType_Spec *spec)
{
    PyObject *type = added_type(module, spec);
    Py_XDECREF(type);
    return type == NULL ? -1 : 0;
}

static int execute(PyObject *module)
{
    State *state = PyModule_GetState(module);
    prepare_crc32c();
    state->parse_error = imported("scriba.errors", "ParseError");
    if (state->parse_error == NULL)
        return -1;
    state->crc32c = imported("scriba.records.crc", "crc32c");
    if (state->crc32c == NULL)
        return -1;
    state->record = imported_tuple("scriba.records.record", "Record");
    state->header = imported_tuple("scriba.records.header", "BatchHeader");
    if (state->record == NULL || state->header == NULL)
        return -1;
    state->record_fields = added_type(module, &record_fields_spec);
    state->ticket = added_type(module, &ticket_spec);
    if (state->record_fields == NULL || state->ticket == NULL ||
        add_type(module, &channel_spec) < 0 || add_type(module, &intake_spec) < 0)
        return -1;
    if (add_type(module, &columns_spec) < 0 || add_type(module, &builder_spec) < 0 ||
        add_type(module, &offset_map_spec) < 0 ||
        add_type(module, &commit_bytes_spec) < 0)
        return -1;
    return PyModule_AddStringConstant(module, "SOURCES", SCRIBA_NATIVE_SOURCES);
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    Py_VISIT(state->parse_error);
    Py_VISIT(state->record);
    Py_VISIT(state->record_fields);
    Py_VISIT(state->ticket);
    Py_VISIT(state->header);
    Py_VISIT(state->crc32c);
    return 0;
}

static int clear(PyObject *module)
{
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->parse_error);
    Py_CLEAR(state->record);
    Py_CLEAR(state->record_fields);
    Py_CLEAR(state->ticket);
    Py_CLEAR(state->header);
    Py_CLEAR(state->crc32c);
    return 0;
}

static void destroy(void *module)
{
    State *state = PyModule_GetState(module);
    clear(module);
    free(state->window);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
    {0, NULL},
};

static PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "scriba.native._native",
    .m_doc = "The functions of scriba.native.fallback in C.",
    .m_size = sizeof(State),
    .m_methods = functions,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = destroy,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
