/* What the files of `scriba.native._native` share: reading numbers and records from bytes that nobody
 * has checked.
 *
 * Every reader moves a cursor, never past its end, and believes nothing that it read before, so
 * that even bytes that change meanwhile cannot lead it outside. Whatever is wrong with a record is
 * a `Fault`; only the functions that Python sees turn one into an exception.
 */
#ifndef SCRIBA_NATIVE_H
#define SCRIBA_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

/* A length, attributes, two deltas, two lengths and a number of headers, one byte each. */
#define MIN_RECORD_BYTES 7

/* From here on a walk over records is long enough to let other threads run meanwhile. */
#define LONG_WALK_BYTES (1 << 20)

#define NO_TIMESTAMP (-1)

typedef struct {
    PyObject *parse_error;   /* scriba.errors.ParseError */
    PyObject *record;        /* scriba.records.record.Record, a named tuple */
    PyObject *record_fields; /* RecordFields, of this module */
    PyObject *ticket;        /* Ticket, of this module */
    PyObject *header;        /* scriba.records.header.BatchHeader, a named tuple */
    PyObject *crc32c;        /* scriba.records.crc.crc32c */
    void *window;            /* memory that check_lz4 uses again; NULL while it is in use */
} State;

typedef enum {
    FINE = 0,
    PAST_END,
    BAD_NUMBER,
    FIELD_PAST_END,
    BAD_HEADER_COUNT,
    NAMELESS_HEADER,
    WRONG_LENGTH,
    WRONG_OFFSET,
} Fault;

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} Cursor;

/* Bytes inside a record; `data` is NULL for null. */
typedef struct {
    const uint8_t *data;
    Py_ssize_t size;
} Field;

typedef struct {
    int64_t time_delta;
    int32_t offset_delta;
    Field key;
    Field value;
    int32_t header_count;
    Cursor headers;
} RecordView;

static inline Cursor cursor_over(const Py_buffer *view)
{
    const uint8_t *start = view->len ? view->buf : (const uint8_t *)"";
    return (Cursor){start, start + view->len};
}

/* Zigzag varints, as lenient as Java's: bits beyond the type are dropped, bytes beyond it are not. */
static inline bool read_varint(Cursor *cursor, int32_t *number)
{
    uint32_t value = 0;
    for (unsigned shift = 0; shift < 35 && cursor->at < cursor->end; shift += 7) {
        uint8_t byte = *cursor->at++;
        value |= (uint32_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *number = (int32_t)((value >> 1) ^ (0 - (value & 1)));
            return true;
        }
    }
    return false;
}

static inline bool read_varlong(Cursor *cursor, int64_t *number)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 70 && cursor->at < cursor->end; shift += 7) {
        uint8_t byte = *cursor->at++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *number = (int64_t)((value >> 1) ^ (0 - (value & 1)));
            return true;
        }
    }
    return false;
}

static inline uint64_t zigzag(int64_t number)
{
    return ((uint64_t)number << 1) ^ (0 - ((uint64_t)number >> 63));
}

static inline int64_t varint_size(int64_t number)
{
    int64_t size = 1;
    for (uint64_t rest = zigzag(number); rest > 0x7F; rest >>= 7)
        size++;
    return size;
}

static inline uint8_t *put_varint(uint8_t *out, int64_t number)
{
    uint64_t rest = zigzag(number);
    for (; rest > 0x7F; rest >>= 7)
        *out++ = (uint8_t)(rest | 0x80);
    *out++ = (uint8_t)rest;
    return out;
}

static inline Fault read_field(Cursor *cursor, Field *field)
{
    int32_t size;
    if (!read_varint(cursor, &size))
        return BAD_NUMBER;
    if (size < 0) {
        *field = (Field){NULL, 0};
        return FINE;
    }
    if (size > cursor->end - cursor->at)
        return FIELD_PAST_END;
    *field = (Field){cursor->at, size};
    cursor->at += size;
    return FINE;
}

static inline uint64_t big_endian(const uint8_t *data, int bytes)
{
    uint64_t value = 0;
#pragma GCC unroll 8
    for (int i = 0; i < bytes; i++)
        value = value << 8 | data[i];
    return value;
}

static inline void put_big_endian(uint8_t *out, int bytes, uint64_t value)
{
    for (int i = bytes; i-- > 0; value >>= 8)
        out[i] = (uint8_t)value;
}

/* Java's `long` wraps, and so do sums here. */
static inline int64_t wrapping_sum(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

/* Reads the record at the cursor and moves behind it; headers are stepped over and remembered. */
Fault read_record(Cursor *cursor, RecordView *record);

/* The same for the bytes that a record's length counts. */
Fault read_body(Cursor body, RecordView *record);

/* Whether a section of `size` bytes may hold this many records; if not, ParseError is set. */
bool plausible_count(State *state, int64_t count, Py_ssize_t size);

/* Whether records were read without a fault, and no bytes follow them; if not, ParseError is set
 * for the record at `index`, or for the rest. */
bool sound(State *state, int64_t index, Fault fault, bool rest);

/* An argument that must be a number of 64 bits; otherwise false, with an exception set. */
bool int64_argument(PyObject *argument, int64_t *number);

PyObject *bytes_or_none(const Field *field);

/* The headers of a record that `read_record` found fine. */
PyObject *headers_tuple(const RecordView *record);

/* A tuple of a named kind, to be filled with numbers, bytes, strings and tuples of such: they make
 * no cycle, so the collector need not look at it. */
PyObject *new_tuple(PyObject *type, Py_ssize_t size);

/* Hands a new reference to a new tuple; false when there is none, with its exception set. */
bool put_item(PyObject *tuple, Py_ssize_t index, PyObject *item);

/* The end of a `dealloc`. */
void free_object(PyObject *object);

/* A time, or NULL for None; false with an exception set. */
bool time_argument(PyObject *argument, int64_t *time, const int64_t **given);

bool argument_count(const char *function, Py_ssize_t given, Py_ssize_t wanted);

/* ---- judging the records of a batch ---- */

typedef struct {
    int64_t index;
    int64_t timestamp;
    bool keyless;
} Blamed;

/* The bad records of a batch: how many, and which the first `most` of them are. */
typedef struct {
    Blamed *list;
    int64_t most;
    int64_t total;
} Blame;

typedef struct {
    int64_t count;
    int64_t base_timestamp;
    int64_t earliest;
    int64_t latest;
    bool need_keys;
    Blame *blame; /* where bad records are noted, or NULL */
    bool search;  /* whether all that is wanted is the first record from `earliest` to `latest` */
    int64_t skip; /* after so many records */
    int64_t least_delta; /* and from this offset on */
} Rules;

typedef struct {
    int64_t records; /* how many were judged */
    int64_t max_timestamp;
    int64_t keyless;
    int64_t untimely;
    Fault fault; /* of the record after those judged */
    bool over;   /* the record that was searched for is found, and the next two say which it is */
    int64_t offset_delta;
    int64_t timestamp;
} Findings;

#define NOTHING_FOUND {.max_timestamp = NO_TIMESTAMP, .keyless = -1, .untimely = -1}

/* Records that come in pieces. `refill` puts the cursor over the next piece that is not empty; it
 * returns false at the end, and when there is something wrong, which only it can tell. */
typedef struct Source Source;
struct Source {
    Cursor cursor;
    bool (*refill)(Source *source);
    bool locked; /* whether `refill` needs the interpreter */
};

/* Reads count, base timestamp, need of keys, earliest and latest from five arguments. */
bool rules_argument(PyObject *const *args, Rules *rules);

/* Judges the records that lie whole before the end of the piece. */
void judge_piece(Cursor *cursor, const Rules *rules, Findings *found);

/* Judges all records; also whether bytes follow the last one. */
Findings judge_all(Source *source, const Rules *rules, bool *rest);

/* (largest timestamp, first record without a key, first untimely one), or ParseError. */
PyObject *findings_tuple(State *state, const Findings *found, bool rest);

/* Judges the records of an lz4 frame that may grow to `*most`, and takes off what it grew to. False
 * if it is none that is read here, or with an exception set. */
bool judge_lz4(State *state, Cursor data, int64_t *most, const Rules *rules, Findings *found,
               bool *rest);

PyObject *present_records(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *check_records(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *check_lz4(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *blame_records(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *find_record(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

#define SEED_BYTES 16

typedef struct {
    uint64_t low;
    uint64_t high;
} Hash;

void read_seed(uint64_t words[2], const char *seed);
Hash siphash(const uint64_t seed[2], const uint8_t *data, size_t size);

/* siphash(seed, data), for its test vectors. */
PyObject *siphash_digest(PyObject *module, PyObject *args);
PyObject *murmur2(PyObject *module, PyObject *key);
uint32_t murmur2_of(Cursor key);

/* A Builder, used without a call: whether an object is one, what it has, one record more. */
bool is_builder(PyObject *object);
Py_ssize_t builder_size(PyObject *builder);
bool builder_add(PyObject *builder, int64_t timestamp, PyObject *key, PyObject *value,
                 PyObject *headers, int32_t *index);

/* Once, before `crc32c`. */
void prepare_crc32c(void);

/* False with an exception set. Other threads may run meanwhile. */
bool crc32c(const State *state, const uint8_t *data, Py_ssize_t size, uint32_t *crc);

/* crc32c_of(data), for tests: as above, and whether the processor does it for a few bytes. */
PyObject *crc32c_of(PyObject *module, PyObject *data);

/* The header of the batch that begins here, as Python has it. */
PyObject *header_tuple(State *state, const uint8_t *at);

/* ---- fields of a request ---- */

#define FEW_NUMBERS 64

typedef struct {
    int64_t *list;
    Py_ssize_t count;
    Py_ssize_t room;
    int64_t few[FEW_NUMBERS];
} Numbers;

typedef enum { WALK_FAILED = -1, GIVEN_UP, WALKED } Walked;

/* What a plan asks for, to be freed whatever the outcome; WALK_FAILED with an exception set. */
Walked locate_fields(Cursor plan, Cursor frame, int64_t most_elements, Numbers *told);
void free_numbers(Numbers *numbers);

PyObject *locate(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *judge_produce(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *checked_batches(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *walk_headers(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

extern PyType_Spec commit_bytes_spec;
extern PyType_Spec record_fields_spec;
extern PyType_Spec ticket_spec;
extern PyType_Spec channel_spec;
extern PyType_Spec intake_spec;
/* A column of bytes as Arrow lays it out: ends, contents, and bits for rows that are not null. */
typedef struct {
    Py_buffer views[3];
    int held;
    const char *ends; /* numbers of 32 bits */
    const uint8_t *data;
    const uint8_t *bits; /* NULL when no row is null */
    int64_t rows;
} ColumnView;

/* Holds a tuple of (ends, data, bits or None); false with an exception set. */
bool hold_column(PyObject *argument, ColumnView *column);
void let_column_go(ColumnView *column);

/* A row of it; false with an exception set when its ends lead outside. */
bool column_field(const ColumnView *column, int64_t row, Field *field);

PyObject *place_keys(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *append_rows(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

extern PyType_Spec builder_spec;
extern PyType_Spec columns_spec;
extern PyType_Spec offset_map_spec;

#endif
