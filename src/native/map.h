/* What compaction's files share: the map of keys, and which records of a batch stay. */
#ifndef SCRIBA_NATIVE_MAP_H
#define SCRIBA_NATIVE_MAP_H

#include "native.h"

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

/* A slot is far away in memory. Keys are hashed, and their slots asked for, so many at a time;
 * by when the first one is looked at it has arrived. */
#define AT_ONCE 16

/* The first slot is the hash as a fraction of the table: no division, any number of slots. */
static inline Slot *home_slot(const OffsetMap *self, Hash hash)
{
    return &self->slots[(hash.low >> 32) * self->slot_count >> 32];
}

static inline Field field_over(const Py_buffer *view)
{
    Cursor all = cursor_over(view);
    return (Field){all.at, view->len};
}

/* Also asks for the key's slot. */
Hash hash_key(const OffsetMap *self, Field key);

/* The slot of this key, or the empty one where it belongs. */
Slot *find_slot(const OffsetMap *self, Hash hash);

/* False, with an exception set, while another thread works with the map. */
bool enter(OffsetMap *self);

/* The records of a batch; those before `start_offset` are of no interest. */
typedef struct {
    Cursor records;
    int64_t count;
    int64_t base_offset;
    int64_t start_offset;
} Section;

/* How many records were gone over, what was wrong with the next one, and if more bytes follow. */
typedef struct {
    int64_t taken;
    Fault fault;
    bool rest;
} Progress;

/* Puts their keys; `taken` is less than all of them when the map is full. */
Progress put_section(OffsetMap *self, Section section);

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

/* Of a record whose timestamp counts from another base: its length and timestamp may grow. */
#define MOST_REBASE_GROWTH 15

/* Marks the records that stay. */
Progress choose(const OffsetMap *self, const Terms *terms, Cursor cursor, int64_t count,
                uint8_t *marks, Choice *choice);

/* Writes the marked records, counted from the horizon if `rebase`; where they end. */
uint8_t *put_kept(uint8_t *out, Cursor cursor, int64_t count, const uint8_t *marks,
                  const Terms *terms, bool rebase);

PyObject *map_retain(PyObject *object, PyObject *const *args, Py_ssize_t nargs);
PyObject *map_put_plain(PyObject *object, PyObject *const *args, Py_ssize_t nargs);
PyObject *map_retain_plain(PyObject *object, PyObject *const *args, Py_ssize_t nargs);

#endif
