/* Intake: a producer's records on the way into their batches, without a call of Python.
 *
 * `put` reads all of its arguments and makes the object that it returns before it looks at any
 * batch; from there on nothing runs but what is in this file and in the builder. Another thread
 * that closes a batch does so before or after, never in between: the interpreter's lock, which
 * `put` does not give away, is all that keeps threads apart.
 *
 * Only the plain case is done here. Whatever is out of the ordinary (an unknown topic, a full batch
 * or buffer, a value that is not bytes) is left to the caller: `put` returns None and has changed
 * nothing.
 */
#include "intake.h"

#include <stddef.h>
#include <structmember.h>
#include <time.h>

/* As `native.intake` has them. */
#define RECORD_OVERHEAD 10
#define HEADER_OVERHEAD 4
#define MAX_NUMBERS 24 /* what the numbers of a record may take beyond the usual overhead */

/* ---- the intake ---- */

typedef struct {
    PyObject_HEAD
    PyObject *topics;   /* dict: name -> what is known of the topic */
    PyObject *channels; /* dict: name -> Channel */
    PyObject *ticket;
    PyObject *clock;
    long long used;
    long long memory;
    long long max_size;
    char shut;
    char by_key;
    char real; /* whether the clock is the machine's */
} Intake;

static PyMemberDef intake_members[] = {
    {"channels", T_OBJECT_EX, offsetof(Intake, channels), READONLY, NULL},
    {"ticket", T_OBJECT, offsetof(Intake, ticket), 0, NULL},
    {"used", T_LONGLONG, offsetof(Intake, used), READONLY, NULL},
    {"shut", T_BOOL, offsetof(Intake, shut), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static int intake_traverse(PyObject *object, visitproc visit, void *arg)
{
    Intake *self = (Intake *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->topics);
    Py_VISIT(self->channels);
    Py_VISIT(self->ticket);
    Py_VISIT(self->clock);
    return 0;
}

static int intake_clear(PyObject *object)
{
    Intake *self = (Intake *)object;
    Py_CLEAR(self->topics);
    Py_CLEAR(self->channels);
    Py_CLEAR(self->ticket);
    Py_CLEAR(self->clock);
    return 0;
}

static void intake_dealloc(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    intake_clear(object);
    free_object(object);
}

static PyObject *intake_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"", "", "", "", "", "", "", "", NULL};
    PyObject *topics, *ticket, *clock, *lock;
    long long memory, max_size;
    int real, by_key;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OOpOLLp:Intake", names, &PyDict_Type,
                                     &topics, &ticket, &clock, &real, &lock, &memory, &max_size,
                                     &by_key))
        return NULL;
    Intake *self = (Intake *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    self->topics = Py_NewRef(topics);
    self->ticket = Py_NewRef(ticket);
    self->clock = Py_NewRef(clock);
    self->memory = memory;
    self->max_size = max_size;
    self->by_key = (char)by_key;
    self->real = (char)real;
    self->channels = PyDict_New();
    if (self->channels == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* A record as `put` was given it. */
typedef struct {
    PyObject *topic;
    PyObject *value;
    PyObject *key;
    PyObject *headers;
    long long partition; /* -1 when it has to be chosen */
    int64_t timestamp;
    long long size;
    long long reserved;
    int margin; /* bytes that are left free in a batch */
} Given;

/* The answers of the functions below: -1 is an exception, 0 means that it is not done here. */
typedef int Answer;

static Answer plain_size(PyObject *content, long long *size)
{
    if (content == Py_None)
        return 1;
    Py_ssize_t length;
    if (PyBytes_Check(content))
        length = PyBytes_Size(content);
    else if (PyByteArray_CheckExact(content))
        length = PyByteArray_Size(content);
    else
        return 0;
    if (length < 0)
        return -1;
    *size += length;
    return 1;
}

static Answer headers_size(PyObject *headers, long long *size)
{
    if (!PyTuple_CheckExact(headers))
        return 0;
    Py_ssize_t count = PyTuple_Size(headers);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *pair = PyTuple_GetItem(headers, i);
        if (!PyTuple_CheckExact(pair) || PyTuple_Size(pair) != 2 ||
            !PyUnicode_CheckExact(PyTuple_GetItem(pair, 0)))
            return 0;
        *size += HEADER_OVERHEAD + PyUnicode_GetLength(PyTuple_GetItem(pair, 0));
        Answer plain = plain_size(PyTuple_GetItem(pair, 1), size);
        if (plain <= 0)
            return plain;
    }
    return 1;
}

static Answer machine_time(int64_t *milliseconds)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    *milliseconds = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    return 1;
}

static Answer number(PyObject *argument, int64_t *found)
{
    if (!PyLong_CheckExact(argument))
        return 0;
    *found = PyLong_AsLongLong(argument);
    if (*found == -1 && PyErr_Occurred() != NULL) {
        PyErr_Clear();
        return 0;
    }
    return *found >= 0;
}

static Answer read_time(const Intake *self, PyObject *argument, int64_t *timestamp)
{
    if (argument != Py_None)
        return number(argument, timestamp);
    if (self->real)
        return machine_time(timestamp);
    PyObject *now = PyObject_CallNoArgs(self->clock);
    if (now == NULL)
        return -1;
    Answer answer = number(now, timestamp);
    Py_DECREF(now);
    return answer;
}

static Answer read_given(const Intake *self, PyObject *const *args, Py_ssize_t nargs, Given *given)
{
    if (nargs != 6 && nargs != 7) {
        PyErr_SetString(PyExc_TypeError, "put() takes 6 or 7 arguments");
        return -1;
    }
    int margin = nargs == 7 ? 0 : MAX_NUMBERS;
    *given = (Given){args[0], args[1], args[2], args[5], -1, 0, RECORD_OVERHEAD, 0, margin};
    int64_t reserved = 0, partition = -1;
    if (nargs == 7 && !int64_argument(args[6], &reserved))
        return -1;
    given->reserved = reserved;
    if (!PyUnicode_CheckExact(given->topic))
        return 0;
    Answer answer = plain_size(given->key, &given->size);
    if (answer > 0)
        answer = plain_size(given->value, &given->size);
    if (answer > 0)
        answer = headers_size(given->headers, &given->size);
    if (answer > 0 && args[3] != Py_None)
        answer = number(args[3], &partition);
    given->partition = partition;
    if (answer > 0)
        answer = given->size <= self->max_size;
    return answer > 0 ? read_time(self, args[4], &given->timestamp) : answer;
}

/* The channel of the topic, borrowed; NULL if there is none, or what is known has changed. */
static Channel *find_channel(const Intake *self, PyObject *topic)
{
    Channel *channel = (Channel *)PyDict_GetItemWithError(self->channels, topic);
    if (channel == NULL || channel->known == NULL ||
        PyDict_GetItemWithError(self->topics, topic) != channel->known)
        return NULL;
    return channel;
}

/* Which partition, and whether that counts for the sticky one; -1 when it has to be drawn. */
static long long choose(const Intake *self, const Channel *channel, const Given *given,
                        bool *sticky)
{
    *sticky = false;
    if (given->partition >= 0)
        return given->partition;
    if (given->key == Py_None || !self->by_key) {
        *sticky = true;
        return channel->room >= given->size ? channel->sticky : -1;
    }
    if (channel->partitions <= 0)
        return -1;
    bool fixed = PyBytes_Check(given->key);
    const char *data = fixed ? PyBytes_AsString(given->key) : PyByteArray_AsString(given->key);
    Py_ssize_t size = fixed ? PyBytes_Size(given->key) : PyByteArray_Size(given->key);
    Cursor key = {(const uint8_t *)data, (const uint8_t *)data + size};
    return (long long)(murmur2_of(key) & 0x7FFFFFFF) % channel->partitions;
}

/* From here to its end nothing else runs. */
static Answer put_held(Intake *self, const Given *given, PyObject **batch, int32_t *index)
{
    if (given->reserved <= 0 && (self->shut || self->used + given->size > self->memory))
        return 0;
    Channel *channel = find_channel(self, given->topic);
    if (channel == NULL)
        return PyErr_Occurred() != NULL ? -1 : 0;
    bool sticky;
    long long partition = choose(self, channel, given, &sticky);
    if (partition < 0 || partition >= channel->slot_count)
        return 0;
    Slot *slot = &channel->slots[partition];
    if (slot->batch == NULL)
        return 0;
    Py_ssize_t before = builder_size(slot->builder);
    if ((double)before + (double)given->size + given->margin > channel->limit)
        return 0;
    if (!builder_add(slot->builder, given->timestamp, given->key, given->value, given->headers,
                     index))
        return -1;
    self->used += builder_size(slot->builder) - before - given->reserved;
    if (sticky)
        channel->room -= given->size;
    *batch = Py_NewRef(slot->batch);
    return 1;
}

static PyObject *intake_put(PyObject *object, PyObject *const *args, Py_ssize_t nargs)
{
    Intake *self = (Intake *)object;
    const State *state = PyType_GetModuleState(Py_TYPE(object));
    Given given;
    Answer answer = read_given(self, args, nargs, &given);
    if (answer < 0)
        return NULL;
    if (answer == 0)
        Py_RETURN_NONE;
    PyObject *type = self->ticket, *ticket = NULL;
    bool derived = PyType_Check(type) && PyType_IsSubtype((PyTypeObject *)type,
                                                          (PyTypeObject *)state->ticket);
    if (derived) {
        ticket = PyType_GenericAlloc((PyTypeObject *)type, 0);
        if (ticket == NULL)
            return NULL;
    }
    PyObject *batch = NULL;
    int32_t index = 0;
    answer = put_held(self, &given, &batch, &index);
    if (answer <= 0) {
        Py_XDECREF(ticket);
        return answer < 0 ? NULL : Py_NewRef(Py_None);
    }
    if (!derived) {
        ticket = PyObject_CallFunction(type, "OiL", batch, (int)index, (long long)given.timestamp);
        Py_DECREF(batch);
        return ticket;
    }
    Ticket *made = (Ticket *)ticket;
    made->batch = batch;
    made->index = index;
    made->timestamp = given.timestamp;
    return ticket;
}

static PyObject *intake_spend(PyObject *object, PyObject *argument)
{
    int64_t size;
    if (!int64_argument(argument, &size))
        return NULL;
    ((Intake *)object)->used += size;
    Py_RETURN_NONE;
}

static PyMethodDef intake_methods[] = {
    {"spend", intake_spend, METH_O, NULL},
    {"put", (PyCFunction)(void (*)(void))intake_put, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot intake_slots[] = {
    {Py_tp_new, intake_new},
    {Py_tp_members, intake_members},
    {Py_tp_methods, intake_methods},
    {Py_tp_traverse, intake_traverse},
    {Py_tp_clear, intake_clear},
    {Py_tp_dealloc, intake_dealloc},
    {0, NULL},
};

PyType_Spec intake_spec = {
    .name = "scriba.native._native.Intake",
    .basicsize = sizeof(Intake),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = intake_slots,
};
