/* Tickets and channels: what the intake gives for a record, and where it finds the open batches. */
#include "intake.h"

#include <stddef.h>
#include <structmember.h>

/* ---- tickets ---- */

static PyMemberDef ticket_members[] = {
    {"batch", T_OBJECT_EX, offsetof(Ticket, batch), 0, NULL},
    {"index", T_INT, offsetof(Ticket, index), 0, NULL},
    {"timestamp", T_LONGLONG, offsetof(Ticket, timestamp), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static int ticket_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((Ticket *)object)->batch);
    return 0;
}

static int ticket_clear(PyObject *object)
{
    Py_CLEAR(((Ticket *)object)->batch);
    return 0;
}

static void ticket_dealloc(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    ticket_clear(object);
    free_object(object);
}

static PyType_Slot ticket_slots[] = {
    {Py_tp_members, ticket_members},
    {Py_tp_traverse, ticket_traverse},
    {Py_tp_clear, ticket_clear},
    {Py_tp_dealloc, ticket_dealloc},
    {0, NULL},
};

PyType_Spec ticket_spec = {
    .name = "scriba.native._native.Ticket",
    .basicsize = sizeof(Ticket),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = ticket_slots,
};

/* ---- channels ---- */

static PyMemberDef channel_members[] = {
    {"known", T_OBJECT, offsetof(Channel, known), 0, NULL},
    {"partitions", T_LONGLONG, offsetof(Channel, partitions), 0, NULL},
    {"sticky", T_LONGLONG, offsetof(Channel, sticky), 0, NULL},
    {"room", T_LONGLONG, offsetof(Channel, room), 0, NULL},
    {"limit", T_DOUBLE, offsetof(Channel, limit), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static int channel_traverse(PyObject *object, visitproc visit, void *arg)
{
    Channel *self = (Channel *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->known);
    for (Py_ssize_t i = 0; i < self->slot_count; i++)
        Py_VISIT(self->slots[i].batch);
    return 0;
}

static void empty_slot(Slot *slot)
{
    PyObject *batch = slot->batch, *builder = slot->builder;
    slot->batch = slot->builder = NULL;
    Py_XDECREF(batch);
    Py_XDECREF(builder);
}

static int channel_clear(PyObject *object)
{
    Channel *self = (Channel *)object;
    Py_CLEAR(self->known);
    for (Py_ssize_t i = 0; i < self->slot_count; i++)
        empty_slot(&self->slots[i]);
    return 0;
}

static void channel_dealloc(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    channel_clear(object);
    PyMem_Free(((Channel *)object)->slots);
    free_object(object);
}

static PyObject *channel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"", "", NULL};
    double limit;
    PyObject *lock;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "dO:Channel", names, &limit, &lock))
        return NULL;
    Channel *self = (Channel *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    self->limit = limit;
    self->sticky = -1;
    return (PyObject *)self;
}

static bool make_slots(Channel *self, Py_ssize_t count)
{
    if (count <= self->slot_count)
        return true;
    Slot *slots = PyMem_Realloc(self->slots, (size_t)count * sizeof(Slot));
    if (slots == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = self->slot_count; i < count; i++)
        slots[i] = (Slot){NULL, NULL};
    self->slots = slots;
    self->slot_count = count;
    return true;
}

static PyObject *channel_open(PyObject *object, PyObject *const *args, Py_ssize_t nargs)
{
    Channel *self = (Channel *)object;
    if (!argument_count("open", nargs, 3))
        return NULL;
    Py_ssize_t partition = PyLong_AsSsize_t(args[0]);
    if (partition == -1 && PyErr_Occurred() != NULL)
        return NULL;
    if (partition < 0 || partition > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "no partition has this number");
        return NULL;
    }
    if (!is_builder(args[2])) {
        PyErr_SetString(PyExc_TypeError, "open() takes a Builder of the extension");
        return NULL;
    }
    if (!make_slots(self, partition + 1))
        return NULL;
    Slot before = self->slots[partition];
    self->slots[partition] = (Slot){Py_NewRef(args[1]), Py_NewRef(args[2])};
    empty_slot(&before);
    Py_RETURN_NONE;
}

static PyObject *channel_close(PyObject *object, PyObject *argument)
{
    Channel *self = (Channel *)object;
    Py_ssize_t partition = PyLong_AsSsize_t(argument);
    if (partition == -1 && PyErr_Occurred() != NULL)
        return NULL;
    if (partition >= 0 && partition < self->slot_count)
        empty_slot(&self->slots[partition]);
    Py_RETURN_NONE;
}

static PyMethodDef channel_methods[] = {
    {"open", (PyCFunction)(void (*)(void))channel_open, METH_FASTCALL, NULL},
    {"close", channel_close, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot channel_slots[] = {
    {Py_tp_new, channel_new},
    {Py_tp_members, channel_members},
    {Py_tp_methods, channel_methods},
    {Py_tp_traverse, channel_traverse},
    {Py_tp_clear, channel_clear},
    {Py_tp_dealloc, channel_dealloc},
    {0, NULL},
};

PyType_Spec channel_spec = {
    .name = "scriba.native._native.Channel",
    .basicsize = sizeof(Channel),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = channel_slots,
};
