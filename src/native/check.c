/* check_records: judges the records of a batch as they come out of a decompressor. blame_records
 * names all that are bad, find_record the first of some time; they walk in the same way.
 *
 * They come in pieces, so that a batch never takes more memory than one of them, whatever it
 * grows to. Records that lie whole in a piece are read there; one that crosses into the next is
 * pulled through byte by byte, which is as strict.
 */
#include "native.h"

#include <stdlib.h>

/* What there is to judge of a record. */
typedef struct {
    int64_t time_delta;
    int32_t offset_delta;
    bool has_key;
} Gist;

static void blame(Blame *blame, int64_t index, int64_t timestamp, bool keyless)
{
    if (blame->total < blame->most)
        blame->list[blame->total] = (Blamed){index, timestamp, keyless};
    blame->total++;
}

/* Offset deltas may be anything here: compaction leaves gaps. */
static void look_at(const Rules *rules, Findings *found, Gist gist)
{
    int64_t timestamp = wrapping_sum(rules->base_timestamp, gist.time_delta);
    if (found->records++ >= rules->skip && gist.offset_delta >= rules->least_delta &&
        timestamp >= rules->earliest && timestamp <= rules->latest) {
        found->over = true;
        found->offset_delta = gist.offset_delta;
        found->timestamp = timestamp;
    }
}

static void judge(const Rules *rules, Findings *found, Gist gist)
{
    int64_t index = found->records;
    if (rules->search) {
        look_at(rules, found, gist);
        return;
    }
    if (gist.offset_delta != index) {
        found->fault = WRONG_OFFSET;
        return;
    }
    int64_t timestamp = wrapping_sum(rules->base_timestamp, gist.time_delta);
    if (timestamp > found->max_timestamp)
        found->max_timestamp = timestamp;
    if (rules->need_keys && !gist.has_key) {
        if (found->keyless < 0)
            found->keyless = index;
        if (rules->blame != NULL)
            blame(rules->blame, index, timestamp, true);
    } else if (timestamp != NO_TIMESTAMP &&
               (timestamp < rules->earliest || timestamp > rules->latest)) {
        if (found->untimely < 0)
            found->untimely = index;
        if (rules->blame != NULL)
            blame(rules->blame, index, timestamp, false);
    }
    found->records++;
}

void judge_piece(Cursor *cursor, const Rules *rules, Findings *found)
{
    while (found->records < rules->count && !found->fault && !found->over) {
        Cursor body = *cursor;
        int32_t size;
        if (!read_varint(&body, &size) || size < 0 || size > body.end - body.at)
            return;
        cursor->at = body.end = body.at + size;
        RecordView record;
        found->fault = read_body(body, &record);
        if (!found->fault)
            judge(rules, found,
                  (Gist){record.time_delta, record.offset_delta, record.key.data != NULL});
    }
}

static inline bool any_left(Source *source)
{
    return source->cursor.at < source->cursor.end || source->refill(source);
}

/* ---- a record that crosses from one piece into the next ---- */

/* A varint of which at most `bits`, a multiple of seven, are read; `left` bytes may be used. */
static Fault pull_number(Source *source, int64_t *left, unsigned bits, int64_t *number)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < bits; shift += 7) {
        if (*left == 0 || !any_left(source))
            return BAD_NUMBER;
        uint8_t byte = *source->cursor.at++;
        --*left;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            if (bits == 35)
                value &= UINT32_MAX;
            *number = (int64_t)((value >> 1) ^ (0 - (value & 1)));
            return FINE;
        }
    }
    return BAD_NUMBER;
}

static Fault pull_over(Source *source, int64_t *left, int64_t size)
{
    if (size > *left)
        return FIELD_PAST_END;
    *left -= size;
    while (size > 0) {
        if (!any_left(source))
            return PAST_END;
        int64_t step = source->cursor.end - source->cursor.at;
        step = step < size ? step : size;
        source->cursor.at += step;
        size -= step;
    }
    return FINE;
}

/* A length, negative for null, and that many bytes. */
static Fault pull_field(Source *source, int64_t *left, int64_t *size)
{
    Fault fault = pull_number(source, left, 35, size);
    return fault || *size < 0 ? fault : pull_over(source, left, *size);
}

static Fault pull_headers(Source *source, int64_t *left)
{
    int64_t count, size;
    Fault fault = pull_number(source, left, 35, &count);
    if (!fault && (count < 0 || count > *left))
        return BAD_HEADER_COUNT;
    for (int64_t i = 0; !fault && i < count; i++) {
        fault = pull_field(source, left, &size);
        if (!fault)
            fault = size < 0 ? NAMELESS_HEADER : pull_field(source, left, &size);
    }
    return fault;
}

static Fault pull_record(Source *source, Gist *gist)
{
    int64_t left, offset_delta, size, enough = INT64_MAX;
    Fault fault = pull_number(source, &enough, 35, &left);
    if (fault)
        return fault;
    if (left < 0)
        return PAST_END;
    if (left == 0)
        return BAD_NUMBER;
    if ((fault = pull_over(source, &left, 1)) || /* attributes */
        (fault = pull_number(source, &left, 70, &gist->time_delta)) ||
        (fault = pull_number(source, &left, 35, &offset_delta)) ||
        (fault = pull_field(source, &left, &size)))
        return fault;
    gist->offset_delta = (int32_t)offset_delta;
    gist->has_key = size >= 0;
    if ((fault = pull_field(source, &left, &size)) || (fault = pull_headers(source, &left)))
        return fault;
    return left ? WRONG_LENGTH : FINE;
}

/* ---- all of them ---- */

static void judge_large_piece(Source *source, const Rules *rules, Findings *found)
{
    bool longer = source->locked && source->cursor.end - source->cursor.at >= LONG_WALK_BYTES;
    PyThreadState *thread = longer ? PyEval_SaveThread() : NULL;
    judge_piece(&source->cursor, rules, found);
    if (thread != NULL)
        PyEval_RestoreThread(thread);
}

Findings judge_all(Source *source, const Rules *rules, bool *rest)
{
    Findings found = NOTHING_FOUND;
    while (found.records < rules->count && !found.fault && !found.over) {
        if (any_left(source))
            judge_large_piece(source, rules, &found);
        if (found.records == rules->count || found.fault || found.over)
            break;
        Gist gist;
        found.fault = pull_record(source, &gist);
        if (!found.fault)
            judge(rules, &found, gist);
    }
    *rest = !found.fault && !found.over && any_left(source);
    return found;
}

PyObject *findings_tuple(State *state, const Findings *found, bool rest)
{
    if (!sound(state, found->records, found->fault, rest))
        return NULL;
    return Py_BuildValue("(LLL)", (long long)found->max_timestamp, (long long)found->keyless,
                         (long long)found->untimely);
}

bool rules_argument(PyObject *const *args, Rules *rules)
{
    *rules = (Rules){0};
    if (!int64_argument(args[0], &rules->count) ||
        !int64_argument(args[1], &rules->base_timestamp) ||
        !int64_argument(args[3], &rules->earliest) || !int64_argument(args[4], &rules->latest))
        return false;
    int need_keys = PyObject_IsTrue(args[2]);
    rules->need_keys = need_keys > 0;
    return need_keys >= 0;
}

/* ---- pieces that Python hands over ---- */

typedef struct {
    Source source;
    PyObject *iterator;
    Py_buffer view;
    bool viewed;
} Pieces;

/* False at the end, or with an exception set. */
static bool next_piece(Source *source)
{
    Pieces *pieces = (Pieces *)source;
    for (;;) {
        if (pieces->viewed)
            PyBuffer_Release(&pieces->view);
        pieces->viewed = false;
        source->cursor.at = source->cursor.end;
        PyObject *piece = PyIter_Next(pieces->iterator);
        if (piece == NULL)
            return false;
        pieces->viewed = PyObject_GetBuffer(piece, &pieces->view, PyBUF_SIMPLE) == 0;
        Py_DECREF(piece);
        if (!pieces->viewed)
            return false;
        source->cursor = cursor_over(&pieces->view);
        if (pieces->view.len)
            return true;
    }
}

/* Walks the records that come from an iterable of buffers; false with an exception set. A search
 * that has found its record leaves the rest alone. */
static bool judge_pieces(State *state, PyObject *iterable, const Rules *rules, Findings *found)
{
    Pieces pieces = {.source = {.refill = next_piece, .locked = true},
                     .iterator = PyObject_GetIter(iterable)};
    if (pieces.iterator == NULL)
        return false;
    bool rest;
    *found = judge_all(&pieces.source, rules, &rest);
    if (!PyErr_Occurred())
        sound(state, found->records, found->fault, rest);
    if (pieces.viewed)
        PyBuffer_Release(&pieces.view);
    Py_DECREF(pieces.iterator);
    return !PyErr_Occurred();
}

PyObject *check_records(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    State *state = PyModule_GetState(module);
    Rules rules;
    Findings found;
    if (!argument_count("check_records", nargs, 6) || !rules_argument(args + 1, &rules) ||
        !judge_pieces(state, args[0], &rules, &found))
        return NULL;
    return findings_tuple(state, &found, false);
}

static PyObject *blame_list(const Blame *blame)
{
    int64_t named = blame->total < blame->most ? blame->total : blame->most;
    PyObject *list = PyList_New(named);
    for (int64_t i = 0; list != NULL && i < named; i++) {
        const Blamed *bad = &blame->list[i];
        PyObject *pair = bad->keyless
                             ? Py_BuildValue("(LO)", (long long)bad->index, Py_None)
                             : Py_BuildValue("(LL)", (long long)bad->index,
                                             (long long)bad->timestamp);
        if (pair == NULL || PyList_SetItem(list, i, pair) < 0)
            Py_CLEAR(list);
    }
    return list;
}

#define MOST_BLAMED (1 << 20)

PyObject *blame_records(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    State *state = PyModule_GetState(module);
    Rules rules;
    Findings found;
    Blame blame = {0};
    if (!argument_count("blame_records", nargs, 7) || !rules_argument(args + 1, &rules) ||
        !int64_argument(args[6], &blame.most))
        return NULL;
    if (blame.most < 1 || blame.most > MOST_BLAMED) {
        PyErr_SetString(PyExc_ValueError, "from 1 to 1048576 records can be named");
        return NULL;
    }
    blame.list = malloc(blame.most * sizeof(Blamed));
    if (blame.list == NULL)
        return PyErr_NoMemory();
    rules.blame = &blame;
    PyObject *result = NULL, *list = NULL;
    if (judge_pieces(state, args[0], &rules, &found) && (list = blame_list(&blame)) != NULL)
        result = Py_BuildValue("(LN)", (long long)blame.total, list);
    free(blame.list);
    return result;
}

PyObject *find_record(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    State *state = PyModule_GetState(module);
    Rules rules = {.search = true};
    Findings found;
    if (!argument_count("find_record", nargs, 7) || !int64_argument(args[1], &rules.count) ||
        !int64_argument(args[2], &rules.base_timestamp) ||
        !int64_argument(args[3], &rules.skip) || !int64_argument(args[4], &rules.least_delta) ||
        !int64_argument(args[5], &rules.earliest) || !int64_argument(args[6], &rules.latest) ||
        !judge_pieces(state, args[0], &rules, &found))
        return NULL;
    if (!found.over)
        return Py_NewRef(Py_None);
    return Py_BuildValue("(LL)", (long long)found.offset_delta, (long long)found.timestamp);
}
