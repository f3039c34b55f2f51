/* What a producer's records go through: tickets, channels and the intake. */
#ifndef SCRIBA_NATIVE_INTAKE_H
#define SCRIBA_NATIVE_INTAKE_H

#include "native.h"

/* Which record of which batch. */
typedef struct {
    PyObject_HEAD
    PyObject *batch;
    long long timestamp;
    int index;
} Ticket;

/* An open batch. */
typedef struct {
    PyObject *batch;
    PyObject *builder;
} Slot;

/* The open batches of one topic, by partition. */
typedef struct {
    PyObject_HEAD
    PyObject *known;
    Slot *slots;
    Py_ssize_t slot_count;
    long long partitions;
    long long sticky;
    long long room;
    double limit;
} Channel;

#endif
